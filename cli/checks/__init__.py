"""What `baton doctor` looks at; each function makes one or several `Check`s and changes nothing."""
