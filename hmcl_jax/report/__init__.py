"""Results as tables, files and progress; analyses of finished runs as figures and a page."""

from hmcl_jax.report.results import (
    check_results,
    columns,
    latex_table,
    markdown_table,
    write_results,
)

__all__ = ["check_results", "columns", "latex_table", "markdown_table", "write_results"]
