"""Files in and out: whole files, rows of data, results that can be resumed, and progress."""
