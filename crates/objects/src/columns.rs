//! The columns of the table of objects.

/// An axis of the volume that objects are measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableAxis {
    /// Across slices.
    Z,
    /// Across rows.
    Y,
    /// Across columns.
    X,
}

impl TableAxis {
    /// The axes in the order of positions and shapes.
    pub const ALL: [Self; 3] = [Self::Z, Self::Y, Self::X];

    /// Returns the axis as a lower-case letter.
    pub fn letter(self) -> char {
        match self {
            Self::Z => 'z',
            Self::Y => 'y',
            Self::X => 'x',
        }
    }
}

/// A column of the table of objects, except those of intensities, whose names contain that of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectColumn {
    /// Time point, from 0; only in tables of several time points.
    Time,
    /// Number of the object in the label image.
    Label,
    /// Number of voxels.
    Voxels,
    /// Volume in µm³.
    VolumeUm3,
    /// Centroid along an axis in µm.
    CentroidUm(TableAxis),
    /// First voxel of the bounding box along an axis, from 0.
    BoxStart(TableAxis),
    /// Voxel after the last one of the bounding box along an axis, from 0.
    BoxEnd(TableAxis),
    /// Diameter in µm of the sphere of the same volume.
    EquivalentDiameterUm,
    /// Length of the longest principal axis in µm.
    FirstAxisUm,
    /// Length of the second principal axis in µm.
    SecondAxisUm,
    /// Length of the shortest principal axis in µm.
    ThirdAxisUm,
    /// Surface of the sphere of the same volume, relative to the surface of the object.
    Sphericity,
}

impl ObjectColumn {
    /// The columns before those of intensities, in the order of the table, without [`ObjectColumn::Time`].
    pub(crate) const BEFORE_INTENSITIES: [Self; 12] = [
        Self::Label,
        Self::Voxels,
        Self::VolumeUm3,
        Self::CentroidUm(TableAxis::Z),
        Self::CentroidUm(TableAxis::Y),
        Self::CentroidUm(TableAxis::X),
        Self::BoxStart(TableAxis::Z),
        Self::BoxStart(TableAxis::Y),
        Self::BoxStart(TableAxis::X),
        Self::BoxEnd(TableAxis::Z),
        Self::BoxEnd(TableAxis::Y),
        Self::BoxEnd(TableAxis::X),
    ];
    /// The columns after those of intensities, in the order of the table.
    pub(crate) const AFTER_INTENSITIES: [Self; 5] =
        [Self::EquivalentDiameterUm, Self::FirstAxisUm, Self::SecondAxisUm, Self::ThirdAxisUm, Self::Sphericity];

    /// Returns the column of this name; `None` for columns of intensities and of other programs.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = [Self::Time].into_iter().chain(Self::BEFORE_INTENSITIES).chain(Self::AFTER_INTENSITIES);
        all.find(|column| column.name() == name)
    }

    /// Returns the name of the column in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Label => "label",
            Self::Voxels => "voxels",
            Self::VolumeUm3 => "volume_um3",
            Self::CentroidUm(TableAxis::Z) => "centroid_z_um",
            Self::CentroidUm(TableAxis::Y) => "centroid_y_um",
            Self::CentroidUm(TableAxis::X) => "centroid_x_um",
            Self::BoxStart(TableAxis::Z) => "bbox_z0",
            Self::BoxStart(TableAxis::Y) => "bbox_y0",
            Self::BoxStart(TableAxis::X) => "bbox_x0",
            Self::BoxEnd(TableAxis::Z) => "bbox_z1",
            Self::BoxEnd(TableAxis::Y) => "bbox_y1",
            Self::BoxEnd(TableAxis::X) => "bbox_x1",
            Self::EquivalentDiameterUm => "equivalent_diameter_um",
            Self::FirstAxisUm => "axis_1_um",
            Self::SecondAxisUm => "axis_2_um",
            Self::ThirdAxisUm => "axis_3_um",
            Self::Sphericity => "sphericity",
        }
    }

    /// Returns whether all values are whole numbers.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Time | Self::Label | Self::Voxels | Self::BoxStart(_) | Self::BoxEnd(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ObjectTable;

    #[test]
    fn the_columns_of_a_table_are_known_by_their_names() {
        let table = ObjectTable::from_objects(&[], &["a_um".to_owned()], false).csv();
        let names: Vec<&str> = table.trim_end().split(',').collect();
        let unknown: Vec<&str> = names.iter().copied().filter(|name| ObjectColumn::from_name(name).is_none()).collect();
        assert_eq!(unknown, ["mean_a_um", "max_a_um", "sum_a_um"]);
        let known: Vec<ObjectColumn> = names.iter().filter_map(|name| ObjectColumn::from_name(name)).collect();
        assert!(known.iter().enumerate().all(|(i, column)| !known[..i].contains(column)), "{known:?}");
        assert_eq!((known.len(), known.iter().filter(|column| column.is_whole()).count()), (17, 8));
        assert_eq!(ObjectColumn::from_name("time"), Some(ObjectColumn::Time));
    }
}
