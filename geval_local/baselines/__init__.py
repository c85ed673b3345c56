"""Reference metrics of other people, as rows beside a judge."""
