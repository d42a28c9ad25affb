"""Files of rows into nodes: cut into tasks, judged row by row, written."""
