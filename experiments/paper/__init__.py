"""The paper's tables as data, the runs behind them, and the comparison of both."""
