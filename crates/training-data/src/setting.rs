//! The settings of training data that problems and errors name.

cytoscope_storage::message_settings! {
    /// A setting of the training data, alone or with a certain value, as it is written in the settings of a training run.
    pub enum DataSetting {
        /// The axes of the files.
        Axes, AXES, "data.axes";
        /// The voxels that count neither in the loss nor in scores.
        IgnoreLabel, IGNORE_LABEL, "data.ignore_label";
        /// The channel of the images.
        ImageChannel, IMAGE_CHANNEL, "data.image_channel";
        /// The channels of the images, of a network with several inputs.
        ImageChannels, IMAGE_CHANNELS, "data.channels";
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
        /// The channel of the targets.
        TargetChannel, TARGET_CHANNEL, "data.target_channel";
        /// The channels of the targets.
        Targets, TARGETS, "data.targets";
        /// The time point of the files.
        Time, TIME, "data.time";
        /// The voxel size of the files.
        VoxelUm, VOXEL_UM, "data.voxel_um";
    }
}
