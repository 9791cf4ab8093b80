//! The options, commands and settings that notes and errors name. Messages write them with the constants of an enum, and
//! [`Message`](crate::message::Message) keeps them beside its text, so that an interface with other names for them, such as the
//! window, can show these.

use std::ops::Range;

/// Defines an enum of what messages name: its constant `ALL`, its functions `text`, `from_text` and `named_in`, `Display`, and
/// a constant for each variant, which format strings can name.
///
/// ```
/// cytoscope_storage::message_settings! {
///     /// Settings of a brush.
///     pub enum BrushSetting {
///         /// Radius in pixels.
///         Radius, RADIUS, "brush.radius";
///     }
/// }
///
/// let message = format!("set {RADIUS} to a number above 0");
/// assert_eq!(message, "set brush.radius to a number above 0");
/// assert_eq!(BrushSetting::named_in(&message), [(4..16, BrushSetting::Radius)]);
/// ```
#[macro_export]
macro_rules! message_settings {
    (
        $(#[$enum_doc:meta])*
        pub enum $name:ident {
            $($(#[$doc:meta])* $variant:ident, $constant:ident, $text:literal;)+
        }
    ) => {
        $(#[$enum_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All variants.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the text in messages.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// Returns what has this text.
            pub fn from_text(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|named| named.text() == text)
            }

            /// Returns what a message names, with the places in it, in order; of several at one place, the longest.
            pub fn named_in(message: &str) -> ::std::vec::Vec<(::std::ops::Range<usize>, Self)> {
                $crate::setting::named_in(message, Self::ALL, Self::text)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::message::write_name(f, self.text())
            }
        }

        $($(#[$doc])* pub const $constant: $name = $name::$variant;)+
    };
}

message_settings! {
    /// An option of the command line, alone or with a certain value, or a command that a message names, as it is typed.
    pub enum Setting {
        /// The loss of accuracy that the quantization of a network may cause.
        AccuracyBudget, ACCURACY_BUDGET, "--accuracy-budget";
        /// The architecture of a checkpoint.
        Architecture, ARCHITECTURE, "--architecture";
        /// The axes of a file.
        Axes, AXES, "--axes";
        /// Patches per batch of a training run.
        Batch, BATCH, "--batch";
        /// The way of joining tiles.
        Blend, BLEND, "--blend";
        /// The default way of joining tiles.
        WithoutBlend, WITHOUT_BLEND, "leave out --blend";
        /// Averaging of overlapping tiles.
        GaussianBlend, GAUSSIAN_BLEND, "--blend gaussian";
        /// Stacks for the calibration of a quantized network.
        Calibrate, CALIBRATE, "--calibrate";
        /// The channel of a stack.
        Channel, CHANNEL, "--channel";
        /// The channels of a stack, for a model with several inputs.
        Channels, CHANNELS, "--channels";
        /// The compression of a converted file.
        Compression, COMPRESSION, "--compression";
        /// The settings file of a training run.
        Config, CONFIG, "--config";
        /// The device that computes.
        Device, DEVICE, "--device";
        /// The CPU as the device.
        OnCpu, ON_CPU, "--device cpu";
        /// The CPU as the device, with 32-bit floats.
        OnCpuInF32, ON_CPU_IN_F32, "--device cpu --precision f32";
        /// The diameter of the objects.
        Diameter, DIAMETER, "--diameter";
        /// Permission to replace existing files.
        Force, FORCE, "--force";
        /// A new network instead of a start model.
        FromScratch, FROM_SCRATCH, "--from scratch";
        /// A label of the ground truth that is not scored.
        IgnoreLabel, IGNORE_LABEL, "--ignore-label";
        /// The image of an input of a model.
        Input, INPUT, "--input";
        /// The report of a command as JSON.
        Json, JSON, "--json";
        /// A label image that is converted with its stack.
        Labels, LABELS, "--labels";
        /// The license of a trained model.
        License, LICENSE, "--license";
        /// A stack that gives regions of interest their extents.
        Like, LIKE, "--like";
        /// Memory that a job may use.
        MemoryBudget, MEMORY_BUDGET, "--memory-budget";
        /// The way of quantizing a network.
        Mode, MODE, "--mode";
        /// The objects whose surfaces are written.
        Objects, OBJECTS, "--objects";
        /// The path of a result.
        Out, OUT, "--out";
        /// The output of a model with several outputs.
        OutputTensor, OUTPUT_TENSOR, "--output-tensor";
        /// The preprocessed stack as a result.
        OutputPreprocessed, OUTPUT_PREPROCESSED, "--outputs preprocessed";
        /// The overlap of averaged tiles.
        Overlap, OVERLAP, "--overlap";
        /// The precision of the computation.
        Precision, PRECISION, "--precision";
        /// The predictions that are scored.
        Pred, PRED, "--pred";
        /// The channel of the predictions that is scored.
        PredChannel, PRED_CHANNEL, "--pred-channel";
        /// Steps that are applied to a stack first.
        Preprocess, PREPROCESS, "--preprocess";
        /// A crop that is applied to a stack first; its ranges may follow.
        Crop, CROP, "--preprocess crop";
        /// The training run that was not finished.
        Resume, RESUME, "--resume";
        /// The training run that was not finished, on the CPU.
        ResumeOnCpu, RESUME_ON_CPU, "--resume --device cpu";
        /// The training run that was not finished, on the CPU with 32-bit floats.
        ResumeOnCpuInF32, RESUME_ON_CPU_IN_F32, "--resume --device cpu --precision f32";
        /// A training run in place of one that was not finished.
        Restart, RESTART, "--restart";
        /// The series of a file.
        Series, SERIES, "--series";
        /// All series of a file.
        AllSeries, ALL_SERIES, "--series all";
        /// A setting of a training run.
        Set, SET, "--set";
        /// The number of batches per optimizer step of a training run; the number follows.
        SetAccumulate, SET_ACCUMULATE, "--set accumulate=";
        /// The memory limit of a training run; the number of MiB follows.
        SetMemoryLimit, SET_MEMORY_LIMIT, "--set memory_mib=";
        /// The memory limit of a training run, whatever its value.
        SetAnyMemoryLimit, SET_ANY_MEMORY_LIMIT, "--set memory_mib=MIB";
        /// The number of data workers of a training run; the number follows.
        SetWorkers, SET_WORKERS, "--set workers=";
        /// The path of a table.
        Table, TABLE, "--table";
        /// The number of threads that compute.
        Threads, THREADS, "--threads";
        /// The size of tiles.
        Tile, TILE, "--tile";
        /// The time point of a stack.
        Time, TIME, "--time";
        /// The file that a run is stored in.
        Trace, TRACE, "--trace";
        /// The ground truth.
        Truth, TRUTH, "--truth";
        /// The channel of the ground truth that is scored.
        TruthChannel, TRUTH_CHANNEL, "--truth-channel";
        /// The voxel size of a stack.
        VoxelSize, VOXEL_SIZE, "--voxel-size";
        /// The command that lists the devices of this machine.
        ListDevices, LIST_DEVICES, "`cytoscope devices`";
        /// The command that measures and stores the fastest settings.
        SaveTuning, SAVE_TUNING, "cytoscope tune --save";
        /// The command that converts models and checkpoints to packages.
        Import, IMPORT, "cytoscope import";
        /// The command that shows how a result was made.
        Provenance, PROVENANCE, "cytoscope provenance";
        /// The command that quantizes a network.
        Quantize, QUANTIZE, "cytoscope quantize";
        /// The command that turns a probability map into labels.
        Segment, SEGMENT, "cytoscope segment";
    }
}

/// The settings of training data that problems and errors name.
pub mod data {
    message_settings! {
        /// A setting of the training data, alone or with a certain value, as it is written in the settings of a training run;
        /// or the place of these settings.
        pub enum DataSetting {
            /// The axes of the files.
            Axes, AXES, "data.axes";
            /// The target that is foreground, without separate objects.
            Foreground, FOREGROUND, "target.kind = \"semantic\"";
            /// The voxels that count neither in the loss nor in scores.
            IgnoreLabel, IGNORE_LABEL, "data.ignore_label";
            /// The channel of the images.
            ImageChannel, IMAGE_CHANNEL, "data.image_channel";
            /// The channels of the images, of a network with several inputs.
            ImageChannels, IMAGE_CHANNELS, "data.channels";
            /// The place of all of these settings, which follows their names.
            InSettings, IN_SETTINGS, "in the settings";
            /// The label image that segmentation is trained on.
            LabelsChannel, LABELS_CHANNEL, "data.labels_channel";
            /// Image and target as channels of one file.
            SameFile, SAME_FILE, "data.same_file = true";
            /// The series of the files.
            Series, SERIES, "data.series";
            /// The order of the numbers of nnU-Net's `spacing`.
            SpacingOrder, SPACING_ORDER, "data.spacing_order";
            /// The column of a table that assigns rows to training, validation and test.
            SplitColumn, SPLIT_COLUMN, "data.split_column";
            /// The channel to use if targets have several.
            TargetChannel, TARGET_CHANNEL, "data.target_channel";
            /// The channels of the targets.
            Targets, TARGETS, "data.targets";
            /// The time point of the files.
            Time, TIME, "data.time";
            /// The voxel size of the files.
            VoxelUm, VOXEL_UM, "data.voxel_um";
        }
    }
}

/// Returns which of `all` a message names by their `text`, with the places in it, in order; of several at one place, the
/// longest.
pub fn named_in<T: Copy>(message: &str, all: &[T], text: impl Fn(T) -> &'static str) -> Vec<(Range<usize>, T)> {
    let is_whole = |after: &str| !after.starts_with(is_part_of_name);
    let longest_at_start_of = |rest: &str| {
        let begins = |setting: &T| rest.strip_prefix(text(*setting)).is_some_and(is_whole);
        all.iter().copied().filter(begins).max_by_key(|setting| text(*setting).len())
    };
    let mut found = Vec::new();
    let (mut end, mut previous) = (0, ' ');
    for (at, character) in message.char_indices() {
        let is_start = at >= end && !is_part_of_name(previous);
        previous = character;
        let Some(rest) = message.get(at..).filter(|_| is_start) else { continue };
        if let Some(setting) = longest_at_start_of(rest) {
            end = at + text(setting).len();
            found.push((at..end, setting));
        }
    }
    found
}

/// Whether the name of an option, or of a file, continues with this character.
fn is_part_of_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '-' | '_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_message_names_the_longest_option_at_each_place() {
        let named = |text: &str| -> Vec<Setting> { Setting::named_in(text).into_iter().map(|(_, s)| s).collect() };
        assert_eq!(named("use --channels, or --channel 0 (--channel)"), [CHANNELS, CHANNEL, CHANNEL]);
        assert_eq!(named("--series all of --series 1, --series allowed"), [ALL_SERIES, SERIES, SERIES]);
        assert_eq!(named("--resume --device cpu --precision f32"), [RESUME_ON_CPU_IN_F32]);
        assert_eq!(named("--resume --device cpu:1"), [RESUME_ON_CPU]);
        assert_eq!(named("see `cytoscope devices`, and run cytoscope tune --save again"), [LIST_DEVICES, SAVE_TUNING]);
        // Names of files and options of other programs.
        assert!(named("a--tile b.tif, --tiles, --saved-model, µ--tile").is_empty());
    }

    #[test]
    fn every_option_is_found_where_it_stands_and_has_a_name_of_its_own() {
        for setting in Setting::ALL {
            let text = format!("µm (give {setting})");
            let found = Setting::named_in(&text);
            let [(range, named)] = found.as_slice() else { panic!("{text}: {found:?}") };
            assert_eq!((named, text.get(range.clone())), (setting, Some(setting.text())));
        }
        let names: BTreeSet<&str> = Setting::ALL.iter().map(|setting| setting.text()).collect();
        assert_eq!(names.len(), Setting::ALL.len());
    }
}
