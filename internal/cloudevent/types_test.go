package cloudevent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// joined are the types whose text the code joins from parts: see the files.
var joined = map[string][]string{
	"global/placer/end.go":       {"job.complete", "job.failed"},
	"global/api/nodes.go":        {"node.cordoned", "node.draining", "node.uncordoned", "node.undrained"},
	"global/api/regions.go":      {"region.cordoned", "region.uncordoned"},
	"global/api/moves.go":        {"region.draining", "region.undrained"},
	"global/uplink/receive.go":   {"slot.accepted", "slot.done", "slot.kept", "slot.rejected", "slot.returned", "slot.revoked", "slot.stopped"},
	"global/spares/step/step.go": {"spare.cancelled", "spare.expired", "spare.failed", "spare.released"},
}

// notDurable are types that the code has, but that no durable event has, and names of fields that look like types.
var notDurable = []string{"instance.gap", "webhook.test", "bus.test", "workflow.outputs"}

var typeText = regexp.MustCompile(`^[a-z_]+\.[a-z_]+$`)

// TestTypes: the list of types is that of the calls, of the maps of types and of the functions that return a
// type in the global tier.
func TestTypes(t *testing.T) {
	if !slices.IsSorted(types) {
		t.Error("the types are not in order")
	}
	found := map[string]string{}
	note := func(path string, e ast.Expr) {
		lit, is := e.(*ast.BasicLit)
		if !is || lit.Kind != token.STRING {
			return
		}
		if text, err := strconv.Unquote(lit.Value); err == nil && typeText.MatchString(text) && !slices.Contains(notDurable, text) {
			found[text] = path
		}
	}
	err := filepath.WalkDir("../../global", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool { eventTypes(n, func(e ast.Expr) { note(path, e) }); return true })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, all := range joined {
		for _, one := range all {
			found[one] = path
		}
	}
	for kind, path := range found {
		if !slices.Contains(types, kind) {
			t.Errorf("%s has events of the type %q: add it to types.go", path, kind)
		}
	}
	for _, kind := range types {
		if found[kind] == "" {
			t.Errorf("no event has the type %q: remove it from types.go, or add the file that joins it to the list of this test", kind)
		}
	}
}

// TestPageHasTheTypes: the page about events names the type of every durable event, once, and no other.
func TestPageHasTheTypes(t *testing.T) {
	page, err := os.ReadFile("../../docs/design/events.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "\n### Of the federation\n")
	section, _, _ := strings.Cut(rest, "\n### ")
	var named []string
	for _, found := range regexp.MustCompile("`([a-z_]+\\.[a-z_]+)`").FindAllStringSubmatch(section, -1) {
		named = append(named, found[1])
	}
	slices.Sort(named)
	if !slices.Equal(named, types) {
		t.Errorf("docs/design/events.md names %v, want %v", named, types)
	}
}

// eventTypes calls note with the expressions of a node that may be types of events.
func eventTypes(n ast.Node, note func(ast.Expr)) {
	switch n := n.(type) {
	case *ast.CallExpr:
		name := ""
		switch f := n.Fun.(type) {
		case *ast.SelectorExpr:
			name = f.Sel.Name
		case *ast.Ident:
			name = f.Name
		}
		if slices.Contains([]string{"Event", "EventAt", "EventText", "Add", "AddAt", "report", "tell", "changeRegion"}, name) {
			for _, arg := range n.Args {
				note(arg)
			}
		}
	case *ast.KeyValueExpr:
		note(n.Value)
	case *ast.ReturnStmt:
		for _, r := range n.Results {
			note(r)
		}
	case *ast.AssignStmt:
		for _, r := range n.Rhs {
			note(r)
		}
	}
}

// TestUnknownTypes: a type that no event has is refused with what is near.
func TestUnknownTypes(t *testing.T) {
	for text, want := range map[string]string{
		"job.submitted": "", "job.*": "", "*": "", "webhook.*": "",
		"nope.*":       "do you mean node.*?",
		"deployment.*": "there are audit.*, auth.*, bus.*",
		"jobs.*":       "do you mean job.*?",
		"job.submited": "do you mean job.submitted?",
		"job.nothing":  "there are job.complete",
		"submitted":    "no event has this type",
		"node.ready":   "there are node.back, node.cordoned",
	} {
		got := unknownType(text)
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %s", text, got)
		}
	}
}
