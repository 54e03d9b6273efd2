//! What is going on, on standard error, when it takes more than half a second.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Nothing is shown before.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a terminal's line is drawn again.
const REDRAW: Duration = Duration::from_millis(100);

/// Shows one piece of work until it is dropped.
///
/// A terminal gets one line that is drawn again and erased at the end; anything else gets one line once.
pub struct Progress {
    ended: Option<Sender<()>>,
    drawer: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts showing `what` on standard error: "reading symbols".
    pub fn start(what: &str) -> Self {
        let stderr = io::stderr();
        let terminal = stderr.is_terminal();
        Self::on(stderr, terminal, what)
    }

    fn on(mut output: impl Write + Send + 'static, terminal: bool, what: &str) -> Self {
        let line = format!("trapless: {what} …");
        let (ended, end) = channel();
        // A thread that cannot be had costs only the display.
        let drawer = std::thread::Builder::new().name("progress".to_owned()).spawn(move || {
            let over = |wait| end.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
            if over(PATIENCE) {
                return;
            }
            // Standard error may be closed; then nobody looks.
            if !terminal {
                let _ = writeln!(output, "{line}");
                return;
            }
            loop {
                let _ = write!(output, "\r\x1b[K{line}");
                let _ = output.flush();
                if over(REDRAW) {
                    break;
                }
            }
            let _ = write!(output, "\r\x1b[K");
            let _ = output.flush();
        });
        Self { ended: Some(ended), drawer: drawer.ok() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // Hanging up is the signal. Waiting makes sure that the line is gone before anything else is printed.
        self.ended = None;
        if let Some(drawer) = self.drawer.take() {
            let _ = drawer.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }

        fn wait_for(&self, text: &str) {
            while !self.text().contains(text) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn quick_work_is_not_mentioned() {
        let output = Shared::default();
        drop(Progress::on(output.clone(), true, "reading symbols"));
        assert_eq!(output.text(), "");
    }

    #[test]
    fn slow_work_is_shown_on_a_terminal_and_erased() {
        let output = Shared::default();
        let progress = Progress::on(output.clone(), true, "reading symbols");
        output.wait_for("trapless: reading symbols …");
        drop(progress);
        assert!(output.text().ends_with("\r\x1b[K"));
    }

    #[test]
    fn slow_work_is_one_line_in_a_file() {
        let output = Shared::default();
        let progress = Progress::on(output.clone(), false, "reading symbols");
        output.wait_for("\n");
        drop(progress);
        assert_eq!(output.text(), "trapless: reading symbols …\n");
    }
}
