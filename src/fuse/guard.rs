//! A guard around every handler. A panic is answered with EIO instead of a hanging caller, because fuser's loop
//! does not survive a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use fuser::Errno;

use crate::view::Error;

/// Runs a handler. Its error becomes an errno, its panic EIO.
pub(super) fn run_guarded<T>(
    operation: &'static str,
    handler: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Errno> {
    // Locks that do not poison protect the state that a panic leaves behind. Such state may be incomplete, but
    // it is readable, and the next scan corrects it.
    let outcome = catch_unwind(AssertUnwindSafe(handler));
    // Other code formats and writes the log line; the answer does not depend on it.
    let _ = catch_unwind(AssertUnwindSafe(|| match &outcome {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(operation, error = %error, "refused"),
        Err(_) => tracing::error!(operation, "a handler panicked; answered EIO"),
    }));
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Errno::from_i32(error.errno())),
        Err(_) => Err(Errno::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_and_errors_are_answered() {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let answer = run_guarded("test", || -> Result<(), Error> { panic!("on purpose") });
        std::panic::set_hook(quiet);
        assert_eq!(answer.unwrap_err().code(), libc::EIO);
        assert_eq!(
            run_guarded::<()>("test", || Err(Error::NotFound)).unwrap_err().code(),
            libc::ENOENT
        );
        assert_eq!(run_guarded("test", || Ok(1)).unwrap(), 1);
    }
}
