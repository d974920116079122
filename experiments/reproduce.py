"""The paper's tables and figures, its numbers beside ours; see paper/reproduce.py."""

from paper.reproduce import main

main()
