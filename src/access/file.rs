//! Reads the auth file.
