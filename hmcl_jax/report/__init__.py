"""Results as tables, files and progress."""

from hmcl_jax.report.results import columns, latex_table, markdown_table, write_results

__all__ = ["columns", "latex_table", "markdown_table", "write_results"]
