//! Advice on the sizes that a prediction assumes: object diameter and voxel size.

use super::{Advice, AdviceRule, AdvisedSetting};
use crate::facts::{DiameterCertainty, InputFacts};
use cytoscope_storage::message;
use cytoscope_storage::rounded;
use cytoscope_storage::setting::{DIAMETER, VOXEL_SIZE};

/// Object diameters in voxels along X that microscopes and the simulation of stacks produce. Outside of them, the voxel
/// size is more likely wrong by a factor than right.
const DIAMETER_VOXELS: std::ops::RangeInclusive<f64> = 2.0..=1000.0;
/// Range of the ratio of slice spacing to the voxel size along X that microscopes produce.
const ANISOTROPY: std::ops::RangeInclusive<f64> = 0.2..=40.0;

pub(super) fn uncertain_diameter(input: &InputFacts) -> Option<(f64, Advice)> {
    let diameter = input.diameter.as_ref()?;
    let (certainty, objects) = diameter.estimate?;
    let unit = if diameter.has_voxel_size { "µm" } else { "voxels" };
    let (severity, evidence) = match certainty {
        DiameterCertainty::None => (
            2.0,
            format!("no objects were found to estimate their diameter: {:.1} {unit} is assumed", diameter.diameter),
        ),
        DiameterCertainty::Low => (
            1.0,
            format!(
                "the estimated object diameter of {:.1} {unit} has low certainty ({objects} objects)",
                diameter.diameter
            ),
        ),
        DiameterCertainty::Medium | DiameterCertainty::High => return None,
    };
    let gain = "objects at the size that the model was trained on, and no time for the estimate".to_owned();
    let change = message!("{DIAMETER} with the median diameter of the objects in {unit}");
    let advice = Advice::new(AdviceRule::UncertainDiameter, evidence, gain, change);
    Some((severity, advice.with(AdvisedSetting::Diameter(diameter.diameter))))
}

pub(super) fn missing_voxel_size(input: &InputFacts) -> Option<(f64, Advice)> {
    // A plane has no slices; its objects are measured and rescaled in pixels.
    if input.diameter.as_ref()?.has_voxel_size || input.is_plane {
        return None;
    }
    let evidence = "the file states no voxel size, so the distance between slices is a guess".to_owned();
    let gain = "objects of the right shape along Z".to_owned();
    let change = message!("{VOXEL_SIZE} Z,Y,X in µm");
    let advice = Advice::new(AdviceRule::MissingVoxelSize, evidence, gain, change);
    Some((1.0, advice.with(AdvisedSetting::VoxelSize)))
}

pub(super) fn wrong_diameter(input: &InputFacts) -> Option<(f64, Advice)> {
    let diameter = input.diameter.as_ref().filter(|diameter| diameter.estimate.is_none())?;
    if input.objects? > 0 {
        return None;
    }
    let unit = if diameter.has_voxel_size { "µm" } else { "voxels" };
    let evidence = format!("no objects were found with the given object diameter of {:.1} {unit}", diameter.diameter);
    let gain = "objects at the size that the model was trained on".to_owned();
    let change = message!("{DIAMETER} auto, which estimates it from the stack");
    let advice = Advice::new(AdviceRule::WrongDiameter, evidence, gain, change);
    Some((1.0, advice.with(AdvisedSetting::EstimatedDiameter)))
}

pub(super) fn wrong_voxel_size(input: &InputFacts) -> Option<(f64, Advice)> {
    let diameter = input.diameter.as_ref().filter(|diameter| diameter.has_voxel_size)?;
    let [z, y, x] = diameter.voxel_zyx.filter(|voxel| voxel.iter().all(|um| um.is_finite() && *um > 0.0))?;
    let (wide, anisotropy) = (diameter.diameter / x, z / x);
    let problem = if !DIAMETER_VOXELS.contains(&wide) {
        format!("an object of {} µm would be {} voxels wide", rounded(diameter.diameter), rounded(wide))
    } else if !input.is_plane && !ANISOTROPY.contains(&anisotropy) {
        format!("slices would be {} times as far apart as pixels", rounded(anisotropy))
    } else {
        return None;
    };
    let [z, y, x] = [z, y, x].map(rounded);
    let evidence = format!("the voxel size {z} × {y} × {x} µm (Z × Y × X) is unusual: {problem}");
    let gain = "objects at the size and of the shape that the model was trained on".to_owned();
    let change = message!("{VOXEL_SIZE} Z,Y,X in µm, if the file states it wrongly, such as in nm or mm");
    let advice = Advice::new(AdviceRule::WrongVoxelSize, evidence, gain, change);
    Some((1.0, advice.with(AdvisedSetting::VoxelSize)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::DiameterFacts;

    #[test]
    fn a_given_diameter_without_objects_is_doubted() {
        let facts = |objects, estimate| InputFacts {
            objects,
            diameter: Some(DiameterFacts { diameter: 9.0, has_voxel_size: true, estimate, voxel_zyx: None }),
            ..InputFacts::default()
        };
        assert_eq!(wrong_diameter(&facts(Some(3), None)), None);
        assert_eq!(wrong_diameter(&facts(None, None)), None, "objects were not searched for");
        assert_eq!(wrong_diameter(&facts(Some(0), Some((DiameterCertainty::High, 9)))), None, "it was estimated");
        let (_, advice) = wrong_diameter(&facts(Some(0), None)).unwrap();
        assert_eq!(advice.setting, Some(AdvisedSetting::EstimatedDiameter));
        assert!(advice.change.contains("--diameter auto"), "{}", advice.change);
    }

    #[test]
    fn voxel_sizes_that_fit_no_microscope_are_doubted() {
        let rule = |diameter, has_voxel_size, voxel_zyx| {
            let diameter = Some(DiameterFacts { diameter, has_voxel_size, estimate: None, voxel_zyx });
            wrong_voxel_size(&InputFacts { diameter, ..InputFacts::default() }).map(|(_, advice)| advice.evidence)
        };
        assert_eq!(rule(9.0, true, Some([1.0, 0.2, 0.2])), None);
        assert_eq!(rule(9.0, true, None), None);
        assert_eq!(rule(9.0, false, Some([1.0, 200.0, 200.0])), None, "the unit is the voxel");
        assert!(
            rule(9.0, true, Some([1000.0, 200.0, 200.0])).unwrap().contains("9 µm would be 0.045 voxels wide"),
            "in nm"
        );
        assert!(
            rule(9.0, true, Some([0.001, 0.0002, 0.0002])).unwrap().contains("9 µm would be 45000 voxels wide"),
            "in mm"
        );
        assert!(rule(9.0, true, Some([50.0, 0.2, 0.2])).unwrap().contains("250 times as far apart"));
        let in_m = rule(9.0, true, Some([2e-6, 2.0 / 3.0 * 1e-6, 1e-6])).unwrap();
        assert!(in_m.contains("the voxel size 0.000002 × 0.000000666667 × 0.000001 µm (Z × Y × X)"), "{in_m}");
    }

    #[test]
    fn the_distance_of_slices_is_not_doubted_in_a_plane() {
        let input = |is_plane, has_voxel_size, voxel| {
            let diameter = DiameterFacts { diameter: 9.0, has_voxel_size, estimate: None, voxel_zyx: Some(voxel) };
            InputFacts { is_plane, diameter: Some(diameter), ..InputFacts::default() }
        };
        let voxels = [1.0; 3];
        assert!(missing_voxel_size(&input(false, false, voxels)).is_some());
        assert_eq!(missing_voxel_size(&input(true, false, voxels)), None);
        let far_apart = [50.0, 0.2, 0.2];
        assert!(wrong_voxel_size(&input(false, true, far_apart)).is_some());
        assert_eq!(wrong_voxel_size(&input(true, true, far_apart)), None);
        let in_nm = wrong_voxel_size(&input(true, true, [1000.0, 200.0, 200.0]));
        assert!(in_nm.is_some(), "the size of objects in pixels is judged in planes, too");
    }
}
