//! `msgfs sendmail`.
