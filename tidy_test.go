// Package nusa_test checks the rules of style: imports, sizes, documentation, words and
// pages.
package nusa_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const module = "github.com/nusa-scheduler/nusa"

// Limits of size. A longer function needs a line "tidy: long: <why>" in its doc comment.
const (
	maxFileLines     = 520
	maxFunctionLines = 75
)

// cores are the packages that decide. They use no I/O, clock, randomness, goroutine or
// protobuf. The value lists the packages that a core may import besides the standard
// library: packages of this module, and pure packages of others.
var cores = map[string][]string{
	"global/region":          {"topology", "internal/lease", "internal/plant"},
	"global/place":           {"topology", "global/region", "global/place/rank", "internal/lease", "internal/apportion", "internal/plant"},
	"global/place/rank":      {},
	"global/failover":        {"internal/plant"},
	"global/room":            {},
	"global/queue":           {},
	"global/progress":        {"internal/plant"},
	"global/hooks/delivery":  {},
	"global/spares/step":     {},
	"global/schedules/plan":  {"internal/plant"},
	"global/workflows/flow":  {"job/steps", "internal/plant"},
	"job/config":             {"internal/suggest"},
	"job/times":              {"github.com/robfig/cron/v3"},
	"job/steps":              {},
	"regional/state":         {"topology", "internal/folder", "internal/versions", "regional/state/persist", "regional/state/retry", "internal/plant", "security/audit"},
	"regional/state/retry":   {"internal/plant"},
	"regional/state/persist": {},
	"regional/voters":        {},
	"regional/presence":      {"regional/state", "internal/lease", "internal/plant"},
	"regional/pools":         {"regional/state"},
	"regional/register":      {"internal/catalog", "regional/state"},
	"regional/sched":         {"topology", "regional/state", "regional/presence", "regional/pools", "internal/plant"},
	"regional/accept":        {"topology", "regional/state", "regional/sched"},
	"regional/regionlease":   {"internal/lease", "regional/state", "internal/plant"},
	"agent/reconcile":        {"topology", "agent/lease", "agent/health"},
	"agent/health":           {"topology"},
	"agent/lease":            {"topology", "internal/lease", "internal/plant"},
	"internal/apportion":     {},
	"internal/catalog":       {"topology"},
	"internal/folder":        {},
	"internal/glob":          {},
	"internal/lease":         {"internal/plant"},
	"internal/link":          {"internal/plant"},
	"internal/overview":      {"github.com/google/btree"},
	"internal/plant":         {},
	"internal/versions":      {},
	"security/audit":         {"golang.org/x/mod/sumdb/note", "golang.org/x/mod/sumdb/tlog"},
	"security/authz":         {"internal/glob", "security/identity"},
	"security/identity":      {},
	"security/join":          {"internal/glob", "security/identity", "security/roster"},
	"security/pki":           {"security/identity"},
	"security/rotation":      {},
	"security/roster":        {"security/identity"},
	"topology/origin":        {"topology"},
	"topology/predict":       {"topology"},

	"global/deadletters/plan":    {"internal/plant"},
	"global/workflows/semaphore": {"github.com/google/btree", "internal/plant"},
}

// forbiddenInCores are standard packages that would make a decision impure.
var forbiddenInCores = []string{"os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "sync", "context", "log/slog"}

var roles = []string{"global", "regional", "agent"}

type source struct {
	path string // relative, slashes
	pkg  string // folder
	file *ast.File
	fset *token.FileSet
	text string
}

func (s source) test() bool { return strings.HasSuffix(s.path, "_test.go") }

func (s source) generated() bool { return ast.IsGenerated(s.file) }

func (s source) imports() []string {
	var out []string
	for _, im := range s.file.Imports {
		p, _ := strconv.Unquote(im.Path.Value)
		out = append(out, p)
	}
	return out
}

func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d Go files found: is the test run in the module's root?", len(all))
	}
	return all
}

// parsed parses the sources once for all tests. No test may change them.
var parsed = sync.OnceValues(func() (out []source, err error) {
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata" || name == "tools" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		slash := filepath.ToSlash(path)
		out = append(out, source{path: slash, pkg: filepath.ToSlash(filepath.Dir(slash)), file: file, fset: fset, text: string(text)})
		return nil
	})
	return out, err
})

func under(pkg, dir string) bool { return pkg == dir || strings.HasPrefix(pkg, dir+"/") }

func TestRolesMeetOnlyInProto(t *testing.T) {
	for _, s := range sources(t) {
		for _, role := range roles {
			if !under(s.pkg, role) || s.test() {
				continue
			}
			for _, im := range s.imports() {
				rel, ours := strings.CutPrefix(im, module+"/")
				if !ours {
					continue
				}
				allowed := under(rel, role) || under(rel, "proto") || under(rel, "topology") || under(rel, "probe") || under(rel, "job") || under(rel, "internal") || under(rel, "security") || rel == "web"
				if !allowed {
					t.Errorf("%s: role %s imports %s: roles meet in proto only", s.path, role, rel)
				}
			}
		}
		if under(s.pkg, "internal") || under(s.pkg, "topology") || under(s.pkg, "probe") || under(s.pkg, "job") || under(s.pkg, "security") {
			for _, im := range s.imports() {
				rel, _ := strings.CutPrefix(im, module+"/")
				for _, role := range roles {
					if under(rel, role) && !s.test() {
						t.Errorf("%s: imports the role %s, which stands above it", s.path, rel)
					}
				}
			}
		}
	}
}

func TestCoresArePure(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		allowed, core := cores[s.pkg]
		if !core || s.test() {
			continue
		}
		seen[s.pkg] = true
		for _, im := range s.imports() {
			rel, ours := strings.CutPrefix(im, module+"/")
			if ours {
				if !slices.Contains(allowed, rel) {
					t.Errorf("%s: core imports %s, allowed are %v", s.path, rel, allowed)
				}
				continue
			}
			if strings.Contains(strings.Split(im, "/")[0], ".") && !slices.Contains(allowed, im) {
				t.Errorf("%s: core imports %s, not of the standard library", s.path, im)
			}
			if slices.Contains(forbiddenInCores, im) {
				t.Errorf("%s: core imports %s", s.path, im)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: core starts a goroutine", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if id, ok := n.X.(*ast.Ident); ok && id.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "After", "Sleep", "NewTimer", "Tick", "NewTicker"}, n.Sel.Name) {
					t.Errorf("%s: core reads the clock with time.%s", s.fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
	for core := range cores {
		if !seen[core] {
			t.Errorf("core %s has no source file: mend the list if it moved", core)
		}
	}
}

func TestPackagesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		documented[s.pkg] = documented[s.pkg] || s.file.Doc != nil || s.generated()
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no doc comment that says its job", pkg)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated() {
			continue
		}
		if n := strings.Count(s.text, "\n"); n > maxFileLines && !s.test() {
			t.Errorf("%s: %d lines, more than %d: more than one job in it?", s.path, n, maxFileLines)
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || s.test() {
				continue
			}
			lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if lines > maxFunctionLines && !strings.Contains(f.Doc.Text(), "tidy: long:") {
				t.Errorf("%s: %s has %d lines, more than %d", s.path, f.Name.Name, lines, maxFunctionLines)
			}
		}
	}
}

// TestNoSleepInTests: tests do not sleep, because a sleep is exact only in a synctest
// bubble. Folders whose tests use bubbles may sleep.
func TestNoSleepInTests(t *testing.T) {
	bubbles := map[string]bool{}
	all := sources(t)
	for _, s := range all {
		if slices.Contains(s.imports(), "testing/synctest") {
			bubbles[s.pkg] = true
		}
	}
	for _, s := range all {
		if (s.test() || under(s.pkg, "sim")) && !bubbles[s.pkg] && strings.Contains(s.text, "time"+".Sleep(") {
			t.Errorf("%s: sleeps, and no test of its folder runs in a synctest bubble", s.path)
		}
	}
}

// TestReasonsAreOnTheWire: every reason of a core has a value in the enumeration of the
// API.
func TestReasonsAreOnTheWire(t *testing.T) {
	found := 0
	for _, s := range sources(t) {
		if _, core := cores[s.pkg]; !core || s.test() {
			continue
		}
		for name, value := range reasonConstants(s.file) {
			found++
			if value == "" {
				continue
			}
			wire := "REASON_" + strings.ToUpper(value)
			if _, ok := nusav1.Reason_value[wire]; !ok {
				t.Errorf("%s: %s = %q has no value %s in types.proto", s.path, name, value, wire)
			}
		}
	}
	if found == 0 {
		t.Error("no reason constants found in the cores: has the type's name changed?")
	}
}

// reasonConstants returns the string constants of type Reason, and those named Reason… without a type.
func reasonConstants(f *ast.File) map[string]string {
	out := map[string]string{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			v := spec.(*ast.ValueSpec)
			typed := v.Type != nil && strings.HasSuffix(fmt.Sprint(v.Type), "Reason")
			for i, name := range v.Names {
				if i >= len(v.Values) || !(typed || strings.HasPrefix(name.Name, "Reason")) {
					continue
				}
				if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					value, _ := strconv.Unquote(lit.Value)
					out[name.Name] = value
				}
			}
		}
	}
	return out
}

// TestLazyExpressions: an expression of lazyregexp is compiled at its first use, so its pattern must be
// checked here.
func TestLazyExpressions(t *testing.T) {
	seen := 0
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || types.ExprString(call.Fun) != "lazyregexp.New" {
				return true
			}
			seen++
			literal, _ := call.Args[0].(*ast.BasicLit)
			if literal == nil {
				t.Errorf("%s: lazyregexp.New needs a literal pattern", s.path)
				return true
			}
			pattern, err := strconv.Unquote(literal.Value)
			if err == nil {
				_, err = regexp.Compile(pattern)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", s.path, literal.Value, err)
			}
			return true
		})
	}
	if seen == 0 {
		t.Error("no call of lazyregexp.New was found")
	}
}
