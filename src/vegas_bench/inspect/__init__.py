"""What verification chose, over the prompt's text: a traced run, packed into one page."""
