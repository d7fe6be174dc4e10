//! Who may, and how that is shown.
