"""`lab outputs`: run the worked notebooks on a cluster of their own, and store what they show."""
