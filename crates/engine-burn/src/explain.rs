//! Turns messages of drivers and compilers into sentences that say what to do.

use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{LIST_DEVICES, ON_CPU, PRECISION};

/// Words that an error contains, and the explanation of such errors.
type Explanation = (&'static [&'static str], fn() -> Message);

/// Parts of messages, in lower case, with the sentence for messages that contain one of them. The first row that matches
/// counts, so causes come before consequences.
const EXPLANATIONS: &[Explanation] = &[
    (&["unsupported_ptx_version", "unsupported toolchain"], || {
        "the NVIDIA driver is older than the installed CUDA compiler (NVRTC): update the driver, or install the NVRTC of \
         the CUDA version that `nvidia-smi` shows".into()
    }),
    (&["invalid value for --gpu-architecture", "nvrtc_error_invalid_option"], || {
        "the installed CUDA compiler (NVRTC) does not know this GPU: install the newest NVRTC that the driver supports, or \
         CUDA 12 for a GPU older than Turing".into()
    }),
    (&["cannot open source file", "could not open source file"], || {
        message!("CUDA headers are missing: {LIST_DEVICES} names them and the command that installs them")
    }),
    (&["cuda_error_no_binary_for_gpu", "cuda_error_invalid_ptx"], || {
        "kernels were compiled for another GPU: delete Cytoscope's folder gpu-tuning in the cache folder and try again"
            .into()
    }),
    (&["unable to dynamically load"], || {
        "a CUDA library could not be loaded: install NVRTC, and add its folder to LD_LIBRARY_PATH (Linux) or PATH (Windows)".into()
    }),
    (&["cuda_error_system_driver_mismatch", "driver/library version mismatch"], || {
        "the versions of the loaded NVIDIA kernel module and of the driver's library differ: restart the computer"
            .into()
    }),
    (&["cuda_error_no_device", "no cuda-capable device"], || {
        "the driver offers no CUDA device: check `nvidia-smi`, and CUDA_VISIBLE_DEVICES if it is set".into()
    }),
    (
        &["cuda_error_insufficient_driver", "cuda_error_stub_library", "cuda_error_compat_not_supported_on_device"],
        || "the NVIDIA driver is too old or only a stub: install a current driver".into(),
    ),
    (&["cuda_error_jit_compiler_not_found"], || {
        "a part of the NVIDIA driver (libnvidia-ptxjitcompiler) is missing: install the complete driver, or in a container, allow \
         it all parts (NVIDIA_DRIVER_CAPABILITIES=all)".into()
    }),
    (&["cuda_error_system_not_ready"], || {
        "the links between the GPUs of this computer are not ready: start the service nvidia-fabricmanager, in the version of the \
         driver".into()
    }),
    (&["cuda_error_operating_system"], || {
        "the NVIDIA driver could not open a device file (/dev/nvidia*): check its permissions, or pass all of them to this \
         container".into()
    }),
    (&["cuda_error_devices_unavailable", "cuda_error_device_unavailable"], || {
        "another program uses the GPU exclusively: close it, or set the compute mode to default with `nvidia-smi -c 0`"
            .into()
    }),
    (&["cuda_error_ecc_uncorrectable", "cuda_error_hardware_stack_error"], || {
        "the GPU reports a hardware error: restart the computer; if it happens again, the GPU is faulty".into()
    }),
    (
        &[
            "cuda_error_illegal_address",
            "cuda_error_launch_failed",
            "cuda_error_launch_timeout",
            "cuda_error_illegal_instruction",
            "cuda_error_misaligned_address",
            "parent device is lost",
            "device is lost",
            "device_lost",
            "device_removed",
            "device_hung",
        ],
        || {
            message!(
                "the GPU stopped a computation and was reset: restart the program before using it again; if it happens again, \
                 update the driver or use {ON_CPU}"
            )
        },
    ),
    (&["cuda_error_launch_out_of_resources"], || {
        message!("a computation needs more registers than this GPU has: choose another {PRECISION}, or use {ON_CPU}")
    }),
    (&["cuda_error_unknown", "cuda_error_not_initialized", "cuda_error_invalid_device"], || {
        "the NVIDIA driver does not work: restart the computer, or reinstall the driver".into()
    }),
    (
        &[
            "recverror",
            "callerror",
            "servicecreationerror",
            "device service",
            // What CubeCL makes of any failed copy.
            "unknown error happened during execution",
        ],
        || {
            message!(
                "the driver failed, and its message was lost: see {LIST_DEVICES}, update the driver, or use {ON_CPU}"
            )
        },
    ),
];

/// Returns the first row of [`EXPLANATIONS`] that matches a message, with its number.
fn explanation(error_text: &str) -> Option<(usize, fn() -> Message)> {
    let lower = error_text.to_lowercase();
    let row = EXPLANATIONS.iter().position(|(parts, _)| parts.iter().any(|part| lower.contains(part)))?;
    EXPLANATIONS.get(row).map(|(_, meaning)| (row, *meaning))
}

/// Returns the rank of a message by how well it states the cause of a failure, the best first: messages with an
/// explanation in the order of the rows, then unknown messages, then those that only say that a message was lost (the
/// last row).
pub(crate) fn rank(error_text: &str) -> usize {
    let lost = EXPLANATIONS.len() - 1;
    match explanation(error_text) {
        Some((row, _)) if row == lost => lost + 1,
        Some((row, _)) => row,
        None => lost,
    }
}

/// Length to which an explained message is truncated, in characters. The driver's code may come after the sentences of the
/// layers above it.
const MAX_MESSAGE_CHARS: usize = 320;

/// What CubeCL writes in place of a backtrace.
const NO_BACKTRACE: [&str; 2] = [" Backtrace No backtrace available", " No backtrace available"];

/// Returns a message without line breaks and missing backtraces, and with errors that follow themselves stated once.
fn simplified(error_text: &str) -> String {
    let mut error_text = error_text.split_whitespace().collect::<Vec<_>>().join(" ");
    for absent in NO_BACKTRACE {
        error_text = error_text.replace(absent, "");
    }
    let mut errors: Vec<&str> = error_text.split("), ").collect();
    errors.dedup();
    errors.join("), ")
}

/// Returns a message preceded by a sentence that says what it means and what to do; messages without an explanation are
/// only simplified.
pub(crate) fn explained(error_text: &str) -> Message {
    let error_text = simplified(error_text);
    match explanation(&error_text) {
        Some((_, meaning)) => {
            let message: String = error_text.chars().take(MAX_MESSAGE_CHARS).collect();
            let rest = if message.len() < error_text.len() { "…" } else { "" };
            message!("{} (the message was: {message}{rest})", meaning())
        }
        None => error_text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_messages_of_drivers_say_what_to_do() {
        let real = [
            (
                "Unable to load the PTX: DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"the provided PTX was compiled \
                 with an unsupported toolchain.\")",
                "update the driver",
            ),
            ("nvrtc: error: invalid value for --gpu-architecture (-arch)", "newest NVRTC"),
            ("default_program(3): catastrophic error: cannot open source file \"cuda_fp16.h\"", "headers are missing"),
            (
                "Unable to dynamically load the \"nvrtc\" shared library - searched for library names: \
                 [\"libnvrtc.so\"]. Ensure that `LD_LIBRARY_PATH` has the correct path to the installed library.",
                "install NVRTC",
            ),
            ("called `Result::unwrap()` on an `Err` value: RecvError", "update the driver"),
            ("called `Result::unwrap()` on an `Err` value: CallError", "update the driver"),
            (
                "called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_NO_DEVICE, \"no CUDA-capable device \
                 is detected\")",
                "nvidia-smi",
            ),
            ("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory access was encountered\")", "--device cpu"),
            ("DriverError(CUDA_ERROR_SYSTEM_NOT_READY, \"system not yet initialized\")", "nvidia-fabricmanager"),
            (
                "DriverError(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, \"PTX JIT compiler library not found\")",
                "complete driver",
            ),
            ("DriverError(CUDA_ERROR_OPERATING_SYSTEM, \"OS call failed or operation not supported\")", "/dev/nvidia"),
            ("wgpu error: Validation Error Caused by: Parent device is lost", "--device cpu"),
        ];
        for (error_text, advice) in real {
            let text = explained(error_text);
            assert!(text.contains(advice), "{text}");
            let options = text.settings().filter(|(_, setting)| *setting == ON_CPU).count();
            assert_eq!(options, usize::from(text.contains(ON_CPU.text())), "{text}");
            let start: String = error_text.chars().take(40).collect();
            assert!(text.contains(&start), "the message itself is kept: {text}");
        }
    }

    #[test]
    fn the_code_of_the_driver_is_kept_and_a_longer_message_is_visibly_cut() {
        let error_text = "An error happened during execution Caused by: The server is in an invalid state Caused by: [Launch(An \
                    unknown error happened during launch Caused by: DriverError(CUDA_ERROR_ILLEGAL_ADDRESS";
        let text = explained(error_text);
        assert!(text.ends_with("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)"), "{text}");
        let text = explained(&format!("{error_text}{}", ", again".repeat(100)));
        assert!(text.contains("ILLEGAL_ADDRESS, again") && text.ends_with("…)"), "{text}");
    }

    #[test]
    fn a_failed_copy_says_what_to_do_and_repeated_errors_are_stated_once() {
        let error = "Io(Unknown error happened during execution\n  No backtrace available)";
        let error_text = format!("An error happened during execution\nCaused by:\n  [{}]", vec![error; 20].join(", "));
        let text = explained(&error_text);
        assert!(text.contains("--device cpu") && text.contains("Io(Unknown error happened"), "{text}");
        assert!(text.len() < 400 && !text.contains("acktrace") && !text.contains('…'), "{text}");
        let error = "Launch(Caused by: DriverError(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, \"too many resources\")\nBacktrace\nNo \
                     backtrace available)";
        let text = explained(&format!("[{error}, {error}]"));
        assert!(text.starts_with("a computation needs more registers"), "{text}");
        assert!(text.contains("\"too many resources\"))") && !text.contains("acktrace"), "{text}");
    }

    #[test]
    fn the_cause_ranks_before_its_consequences() {
        let error_text =
            ["CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "CUDA_ERROR_NO_DEVICE", "a new message", "Err: RecvError"];
        assert!(error_text.is_sorted_by_key(|error_text| rank(error_text)), "{:?}", error_text.map(rank));
    }

    #[test]
    fn an_unknown_message_stays_as_it_is() {
        assert_eq!(explained("something  else\n happened").as_str(), "something else happened");
    }
}
