"""A study to look at: a page, a live page, figures. All of it is made from the study's journal."""
