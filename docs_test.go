package nusa_test

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// Limits of the pages. A page has one purpose and can be read on a screen.
const (
	maxReadmeLines       = 150
	maxArchitectureBytes = 6 << 10
	maxParagraphRunes    = 6 * 110 // six lines
	maxCellRunes         = 120
)

// pages returns the texts of README.md, ARCHITECTURE.md and docs/ by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	read := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.ToSlash(path)] = string(text)
	}
	read("README.md")
	read("ARCHITECTURE.md")
	err := filepath.WalkDir("docs", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") {
			read(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// block is a fenced block of a page, or the text between two fenced blocks.
type block struct {
	fence string // the info string; "" outside fences
	text  string
	line  int
}

func blocks(page string) []block {
	var out []block
	current := block{line: 1}
	inside := false
	for i, line := range strings.Split(page, "\n") {
		info, fence := strings.CutPrefix(line, "```")
		if !fence {
			current.text += line + "\n"
			continue
		}
		out = append(out, current)
		current = block{line: i + 2}
		inside = !inside
		if inside {
			if info == "" {
				info = "text"
			}
			current.fence = info
		}
	}
	return append(out, current)
}

func TestPagesAreShort(t *testing.T) {
	all := pages(t)
	if n := strings.Count(all["README.md"], "\n"); n > maxReadmeLines {
		t.Errorf("README.md: %d lines, more than %d: move details to docs/", n, maxReadmeLines)
	}
	if n := len(all["ARCHITECTURE.md"]); n > maxArchitectureBytes {
		t.Errorf("ARCHITECTURE.md: %d bytes, more than %d: move details to docs/design/", n, maxArchitectureBytes)
	}
	for path, page := range all {
		for _, b := range blocks(page) {
			if b.fence != "" {
				continue
			}
			for paragraph := range strings.SplitSeq(b.text, "\n\n") {
				if strings.HasPrefix(strings.TrimSpace(paragraph), "|") {
					for row := range strings.SplitSeq(paragraph, "\n") {
						for _, cell := range cells(row) {
							if n := utf8.RuneCountInString(cell); n > maxCellRunes {
								t.Errorf("%s: a table cell of %d characters, more than %d: %.60s…", path, n, maxCellRunes, cell)
							}
						}
					}
					continue
				}
				for item := range strings.SplitSeq(paragraph, "\n- ") {
					if n := utf8.RuneCountInString(item); n > maxParagraphRunes {
						t.Errorf("%s: a paragraph of %d characters, more than six lines: %.60s…", path, n, strings.TrimSpace(item))
					}
				}
			}
		}
	}
}

// cells returns the cells of a table row. An escaped | does not end a cell.
func cells(row string) []string {
	row = strings.ReplaceAll(strings.Trim(strings.TrimSpace(row), "|"), `\|`, "¦")
	var out []string
	for cell := range strings.SplitSeq(row, "|") {
		out = append(out, strings.TrimSpace(cell))
	}
	return out
}

// TestShellBlocksAreMarked: every block of commands is marked. The integration tests run a block "sh run"
// against nusa dev, and "sh run members" against members with tokens (deploy/local). A block "sh example"
// is an example for other hosts.
func TestShellBlocksAreMarked(t *testing.T) {
	other := map[string]bool{"text": true, "yaml": true, "csv": true, "json": true, "go": true, "mermaid": true, "proto": true}
	for path, page := range pages(t) {
		for _, b := range blocks(page) {
			if b.fence == "" || b.fence == "sh run" || b.fence == "sh run members" || b.fence == "sh example" || other[b.fence] {
				continue
			}
			t.Errorf("%s:%d: a block marked %q: say sh run, sh example, or the language", path, b.line, b.fence)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)]+)\)`)

func TestLinksOfPagesResolve(t *testing.T) {
	for path, page := range pages(t) {
		for _, b := range blocks(page) {
			if b.fence != "" {
				continue
			}
			for _, m := range link.FindAllStringSubmatch(b.text, -1) {
				target, anchor, _ := strings.Cut(m[1], "#")
				if strings.Contains(target, "://") {
					continue
				}
				file := path
				if target != "" {
					file = filepath.ToSlash(filepath.Join(filepath.Dir(path), target))
				}
				if _, err := os.Stat(file); err != nil {
					t.Errorf("%s: link to %s: %v", path, m[1], err)
					continue
				}
				if anchor == "" {
					continue
				}
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if !hasAnchor(string(text), anchor) {
					t.Errorf("%s: %s has no heading #%s", path, file, anchor)
				}
			}
		}
	}
}

// hasAnchor reports whether a page has the heading that an anchor names.
func hasAnchor(page, anchor string) bool {
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		slug := strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#")))
		slug = strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
				return r
			}
			return -1
		}, slug)
		if slug == anchor {
			return true
		}
	}
	return false
}

// TestArchitectureNamesWhatExists: every path of the map in ARCHITECTURE.md and
// of the design pages is in the tree.
func TestArchitectureNamesWhatExists(t *testing.T) {
	code := regexp.MustCompile("`((?:cmd|proto|topology|probe|job|global|regional|agent|internal|security|sim|bench|deploy|docs|examples|tools)/[A-Za-z0-9_./-]*)`")
	for path, page := range pages(t) {
		for _, m := range code.FindAllStringSubmatch(page, -1) {
			if _, err := os.Stat(strings.TrimSuffix(m[1], "/")); err != nil {
				t.Errorf("%s: names %s, which does not exist", path, m[1])
			}
		}
	}
}

// TestAttacksNameTests: the functions that docs/security.md names as proofs exist.
func TestAttacksNameTests(t *testing.T) {
	_, table, ok := strings.Cut(pages(t)["docs/security.md"], "## Attacks that are tests\n")
	if !ok {
		t.Fatal("docs/security.md has no list of attacks")
	}
	have := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test() {
				have[f.Name.Name] = true
			}
		}
	}
	n := 0
	for row := range strings.Lines(table) {
		c := cells(row)
		if !strings.HasPrefix(row, "|") || len(c) != 2 {
			continue
		}
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(c[1], -1) {
			n++
			if !have[m[1]] {
				t.Errorf("docs/security.md: no test has a function %s", m[1])
			}
		}
	}
	if n < 20 {
		t.Errorf("the list names %d functions", n)
	}
}
