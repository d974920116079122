"""Results as tables, files and progress."""

from hmcl_jax.report.results import (
    check_results,
    columns,
    latex_table,
    markdown_table,
    write_results,
)

__all__ = ["check_results", "columns", "latex_table", "markdown_table", "write_results"]
