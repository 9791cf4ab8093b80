//! Tests of the file dialog.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use super::*;
use crate::effect::Effect;
use crate::opener::FileRequest;
use egui_kittest::Harness;
use egui_kittest::kittest::Queryable;

/// Opens a dialog and lets it read its folder.
fn open(request: FileRequest, folder: &Path, suggested: &str) -> FileBrowser {
    let mut effects = Effects::default();
    let spec = DialogSpec::new(request, Some(folder.to_owned()), suggested.to_owned());
    let mut browser = FileBrowser::open(spec, &mut effects);
    let _ = settle(&mut browser, effects);
    browser
}

/// Applies an action with all that follows; returns the chosen files once the dialog closes.
fn act(browser: &mut FileBrowser, action: BrowserAction) -> Option<Vec<PathBuf>> {
    let mut effects = Effects::default();
    let _ = browser.apply(action, &mut effects);
    settle(browser, effects)
}

fn settle(browser: &mut FileBrowser, effects: Effects) -> Option<Vec<PathBuf>> {
    for effect in effects {
        match effect {
            Effect::Disk(DiskEffect::Visit { path }) => {
                let mut next = Effects::default();
                let _ = browser.visited(visit(&path), &mut next);
                if let Some(files) = settle(browser, next) {
                    return Some(files);
                }
            }
            Effect::Disk(DiskEffect::CreateFolder { path }) => {
                let _ = browser.visited(visit_new(&path), &mut Effects::default());
            }
            Effect::Act(Action::Chosen(_, files)) => return Some(files),
            _ => {}
        }
    }
    None
}

fn names(browser: &FileBrowser) -> Vec<&str> {
    browser.listed().iter().map(|e| e.name.as_str()).collect()
}

#[test]
fn folders_come_first_and_extensions_filter_files() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("stacks")).unwrap();
    for name in ["b.tif", "A.tif", "notes.txt", ".hidden.tif"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let mut browser = open(FileRequest::Stacks, folder.path(), "");
    assert_eq!(names(&browser), ["stacks", "A.tif", "b.tif"]);
    assert_eq!(act(&mut browser, BrowserAction::AllFiles(true)), None);
    assert_eq!(names(&browser), ["stacks", "A.tif", "b.tif", "notes.txt"]);
    assert_eq!(act(&mut browser, BrowserAction::Type("a.t".to_owned())), None);
    assert_eq!(names(&browser), ["A.tif"]);
    assert_eq!(act(&mut browser, BrowserAction::Accept), Some(vec![folder.path().join("A.tif")]));
}

#[test]
fn keys_and_typed_paths_reach_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join("a.tif"), "").unwrap();
    let mut browser = open(FileRequest::Stacks, folder.path(), "");
    assert_eq!(act(&mut browser, BrowserAction::Move(1)), None);
    assert_eq!(act(&mut browser, BrowserAction::Accept), None);
    assert_eq!(names(&browser), ["a.tif"]);
    assert_eq!(act(&mut browser, BrowserAction::Move(1)), None);
    assert_eq!(act(&mut browser, BrowserAction::Accept), Some(vec![inner.join("a.tif")]));
    let mut browser = open(FileRequest::Stacks, folder.path(), "");
    let typed = format!("inner{}a.tif", std::path::MAIN_SEPARATOR);
    assert_eq!(act(&mut browser, BrowserAction::Type(typed)), None);
    assert_eq!(act(&mut browser, BrowserAction::Accept), Some(vec![inner.join("a.tif")]));
    let mut browser = open(FileRequest::Stacks, folder.path(), "");
    let typed = format!("missing{}a.tif", std::path::MAIN_SEPARATOR);
    assert_eq!(act(&mut browser, BrowserAction::Type(typed)), None);
    assert_eq!(act(&mut browser, BrowserAction::Accept), None);
    assert!(browser.problem.as_ref().unwrap().contains("does not exist: check the path"));
}

#[test]
fn the_button_chooses_the_typed_folder_instead_of_the_listed_one() {
    let folder = tempfile::tempdir().unwrap();
    let [inner, other] = ["inner", "another"].map(|name| folder.path().join(name));
    [&inner, &other].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
    for typed in [inner.display().to_string(), "inner".to_owned()] {
        let mut browser = open(FileRequest::ResultsFolder, folder.path(), "");
        assert_eq!(act(&mut browser, BrowserAction::Type(typed)), None);
        assert_eq!(act(&mut browser, BrowserAction::ChooseFolder), Some(vec![inner.clone()]));
    }
    // Part of a name opens the folder, so that it is seen before it is chosen.
    let mut browser = open(FileRequest::ResultsFolder, folder.path(), "");
    assert_eq!(act(&mut browser, BrowserAction::Type("anoth".to_owned())), None);
    assert_eq!(act(&mut browser, BrowserAction::ChooseFolder), None);
    assert_eq!(act(&mut browser, BrowserAction::ChooseFolder), Some(vec![other]));
    // A folder that does not exist is created first.
    let mut browser = open(FileRequest::ResultsFolder, folder.path(), "");
    assert_eq!(act(&mut browser, BrowserAction::Type("new".to_owned())), None);
    assert_eq!(act(&mut browser, BrowserAction::ChooseFolder), None);
    assert_eq!(browser.new_folder, Some(folder.path().join("new")));
}

#[test]
fn only_a_tilde_alone_or_before_a_separator_is_the_home_folder() {
    let folder = tempfile::tempdir().unwrap();
    let stack = folder.path().join("~a.tif");
    std::fs::write(&stack, "").unwrap();
    let mut browser = open(FileRequest::Stacks, folder.path(), "");
    assert_eq!(act(&mut browser, BrowserAction::Type("~a".to_owned())), None);
    assert_eq!(names(&browser), ["~a.tif"]);
    assert_eq!(act(&mut browser, BrowserAction::Accept), Some(vec![stack]));
    let mut browser = open(FileRequest::Table(1), folder.path(), "~objects");
    assert_eq!(act(&mut browser, BrowserAction::Accept), Some(vec![folder.path().join("~objects.csv")]));
    let home = std::env::home_dir().unwrap();
    for typed in ["~".to_owned(), format!("~{}", std::path::MAIN_SEPARATOR)] {
        let _ = browser.apply(BrowserAction::Type(typed), &mut Effects::default());
        assert!(browser.is_path() && browser.typed_path() == home.join(""), "{}", browser.typed);
    }
}

#[test]
fn a_new_file_gets_its_extension_and_an_existing_one_is_replaced_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = open(FileRequest::Table(1), folder.path(), "objects");
    assert_eq!(act(&mut browser, BrowserAction::Accept), Some(vec![folder.path().join("objects.csv")]));
    std::fs::write(folder.path().join("objects.csv"), "").unwrap();
    let mut browser = open(FileRequest::Table(1), folder.path(), "objects.csv");
    assert_eq!(act(&mut browser, BrowserAction::Accept), None);
    assert_eq!(act(&mut browser, BrowserAction::Replace(false)), None);
    assert_eq!(act(&mut browser, BrowserAction::Accept), None);
    let replaced = act(&mut browser, BrowserAction::Replace(true));
    assert_eq!(replaced, Some(vec![folder.path().join("objects.csv")]));
    // The extension is added to a typed name before the disk is asked whether the file exists.
    let mut browser = open(FileRequest::Table(1), folder.path(), "objects");
    assert_eq!(act(&mut browser, BrowserAction::Accept), None);
    assert_eq!(browser.replace, Some(folder.path().join("objects.csv")));
    // A folder of that name is entered.
    std::fs::create_dir(folder.path().join("tables")).unwrap();
    let mut browser = open(FileRequest::Table(1), folder.path(), "tables");
    assert_eq!(act(&mut browser, BrowserAction::Accept), None);
    assert_eq!(browser.folder, folder.path().join("tables"));
}

#[test]
fn a_folder_that_does_not_exist_can_be_created_and_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = open(FileRequest::ResultsFolder, folder.path(), "");
    assert_eq!(act(&mut browser, BrowserAction::Type("pairs".to_owned())), None);
    assert_eq!(act(&mut browser, BrowserAction::Accept), None);
    let new = folder.path().join("pairs");
    assert_eq!((browser.new_folder.as_ref(), new.exists()), (Some(&new), false));
    assert!(browser.problem.as_ref().unwrap().ends_with("does not exist: create it, or check the name"));
    assert_eq!(act(&mut browser, BrowserAction::CreateFolder), None);
    assert!(new.is_dir() && browser.problem.is_none() && browser.typed.is_empty());
    assert_eq!(act(&mut browser, BrowserAction::ChooseFolder), Some(vec![new]));
    // A file to open is not created.
    let mut browser = open(FileRequest::Stacks, folder.path(), "");
    assert_eq!(act(&mut browser, BrowserAction::Type("stack.tif".to_owned())), None);
    assert_eq!(act(&mut browser, BrowserAction::Accept), None);
    assert!(browser.problem.is_some() && browser.new_folder.is_none());
}

#[test]
fn several_files_are_chosen_together_and_a_folder_by_its_button_or_enter() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.tif", "b.tif", "c.tif"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let mut browser = open(FileRequest::Stacks, folder.path(), "");
    for name in ["a.tif", "c.tif"] {
        assert_eq!(act(&mut browser, BrowserAction::Row { name: name.to_owned(), add: true }), None);
    }
    let both = ["a.tif", "c.tif"].map(|name| folder.path().join(name));
    assert_eq!(act(&mut browser, BrowserAction::Accept), Some(both.to_vec()));
    let mut browser = open(FileRequest::ResultsFolder, folder.path(), "");
    assert!(names(&browser).is_empty());
    assert_eq!(act(&mut browser, BrowserAction::ChooseFolder), Some(vec![folder.path().to_owned()]));
    // A typed folder is entered first, so that its path is seen before it is chosen.
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let mut browser = open(FileRequest::ResultsFolder, folder.path(), "");
    assert_eq!(act(&mut browser, BrowserAction::Type("inner".to_owned())), None);
    assert_eq!(act(&mut browser, BrowserAction::Accept), None);
    assert_eq!(act(&mut browser, BrowserAction::Accept), Some(vec![inner]));
}

#[test]
fn accepting_nothing_says_what_to_choose() {
    let folder = tempfile::tempdir().unwrap();
    for (request, problem) in
        [(FileRequest::Stacks, "Choose a file, or type its name"), (FileRequest::Scores, "Type a name for the file")]
    {
        let mut browser = open(request, folder.path(), "");
        assert_eq!(act(&mut browser, BrowserAction::Type(" ".to_owned())), None);
        assert_eq!(act(&mut browser, BrowserAction::Accept), None);
        assert_eq!(browser.problem.as_deref(), Some(problem));
    }
}

#[test]
fn rows_of_a_folder_are_as_high_as_the_list_expects_so_that_the_last_one_is_reached() {
    let folder = tempfile::tempdir().unwrap();
    for number in 10..50 {
        std::fs::write(folder.path().join(format!("{number}.tif")), "").unwrap();
    }
    let browser = open(FileRequest::Stacks, folder.path(), "");
    let mut harness = Harness::builder().with_size([800.0, 700.0]).build_ui_state(
        |ui, browser: &mut FileBrowser| {
            let ctx = ui.ctx().clone();
            theme::install(&ctx);
            browser_dialog(&ctx, Some(&*browser), &mut Actions::default());
        },
        browser,
    );
    harness.run_steps(5);
    let [first, second] = ["10.tif", "11.tif"].map(|name| harness.get_by_label(name).rect().top());
    assert!((second - first - ROW_HEIGHT - theme::GAP).abs() < 0.5, "{first} {second}");
}

#[test]
fn only_names_that_are_cut_off_have_a_tooltip() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["short.tif".to_owned(), format!("{}.tif", "a long name ".repeat(12))];
    for name in &names {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let browser = open(FileRequest::Stacks, folder.path(), "");
    let mut harness = Harness::builder().with_size([800.0, 700.0]).build_ui_state(
        |ui, browser: &mut FileBrowser| {
            let ctx = ui.ctx().clone();
            browser_dialog(&ctx, Some(&*browser), &mut Actions::default());
        },
        browser,
    );
    harness.run_steps(5);
    // The tooltip has the text of the row.
    let counts = names.map(|name| {
        harness.get_by_label(&name).hover();
        harness.run_steps(20);
        harness.query_all_by_label(&name).count()
    });
    assert_eq!(counts, [1, 2]);
}

/// Whether the button with this name is drawn in the color of main buttons.
fn is_main_button(browser: FileBrowser, name: &str) -> bool {
    let mut harness = Harness::builder().with_size([800.0, 700.0]).build_ui_state(
        |ui, browser: &mut FileBrowser| {
            let ctx = ui.ctx().clone();
            browser_dialog(&ctx, Some(&*browser), &mut Actions::default());
        },
        browser,
    );
    harness.run_steps(5);
    let center = harness.get_by_label(name).rect().center();
    let is_filled = |shape: &egui::Shape| match shape {
        egui::Shape::Rect(drawn) => drawn.fill == theme::ACCENT && drawn.rect.contains(center),
        _ => false,
    };
    harness.output().shapes.iter().any(|clipped| is_filled(&clipped.shape))
}

#[test]
fn the_button_that_chooses_is_the_main_one_of_the_dialog() {
    let folder = tempfile::tempdir().unwrap();
    for (request, name) in [
        (FileRequest::Stacks, "Open file"),
        (FileRequest::ResultsFolder, "Choose this folder"),
        (FileRequest::Scores, "Save file"),
    ] {
        assert!(is_main_button(open(request, folder.path(), "a.csv"), name), "{name}");
        assert!(!is_main_button(open(request, folder.path(), "a.csv"), "Cancel dialog"));
    }
    // While a folder is read, nothing can be chosen.
    let reading = FileBrowser { visiting: true, ..open(FileRequest::Stacks, folder.path(), "") };
    assert!(!is_main_button(reading, "Open file"));
}
