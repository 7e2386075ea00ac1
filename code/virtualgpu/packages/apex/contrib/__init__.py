"""Parts of Apex that its authors call contributed."""
