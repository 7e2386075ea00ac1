"""No part: it defines no `run`."""
