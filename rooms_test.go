package nusa_test

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Limits of rooms. A package with more files, or a type with methods in more files, is too
// much for a reader to remember.
const (
	maxPackageFiles = 25
	maxMethodFiles  = 5
)

// layers lists the packages of each role in order. A package may import only those
// packages of its role that are listed before it. The folder of the role itself comes
// last.
var layers = map[string][]string{
	"global":   {"store", "room", "region", "recovery", "failover", "place/rank", "place", "queue", "latency", "compact", "forms", "history", "progress", "idempotency", "events", "state", "gather", "repair", "uplink", "placer", "objects", "hooks/delivery", "hooks", "buses", "api", "rollouts", "intakes", "reservations", "schedules/plan", "schedules", "discovery", "workflows/flow", "workflows/semaphore", "workflows", "deadletters/plan", "deadletters", "tasks", "spares/step", "spares", "overview"},
	"regional": {"state/persist", "state", "trail", "presence", "pools", "sched", "accept", "regionlease", "gossip", "voters", "quorum", "wire", "raftlog", "events", "tasks", "metrics", "nodes", "repair", "peers", "register", "discovery", "uplink", "api", "versions", "reserved", "letters", "overview", "master"},
	"agent": {
		"lease", "health", "reconcile", "retry", "facts", "gpu", "driver", "driver/mounts", "supervise/slim", "supervise", "setup",
		"driver/docker", "driver/incus", "driver/process", "driver/plugin", "driver/reserve", "driver/mock", "driver/drivertest", "dns",
		"store", "engine", "master", "api", "ordertest",
	},
}

// layer returns the role of a package and its position in the layers of the role. The
// position is that of the longest name that matches; -1 = none does.
func layer(pkg string) (role string, position int, ok bool) {
	role, rest, inside := strings.Cut(pkg, "/")
	order, known := layers[role]
	if !known {
		return "", 0, false
	}
	if !inside {
		return role, len(order), true
	}
	position = -1
	for i, name := range order {
		if under(rest, name) && (position < 0 || len(name) > len(order[position])) {
			position = i
		}
	}
	return role, position, true
}

func TestNoImportRunsBackUp(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() {
			continue
		}
		role, from, ok := layer(s.pkg)
		if !ok {
			continue
		}
		if from < 0 {
			t.Errorf("%s: package %s is missing in the layers of %s", s.path, s.pkg, role)
			continue
		}
		for _, im := range s.imports() {
			rel, ours := strings.CutPrefix(im, module+"/")
			if !ours {
				continue
			}
			if other, to, ok := layer(rel); ok && other == role && to > from {
				t.Errorf("%s: imports %s, which stands above %s", s.path, rel, s.pkg)
			}
		}
	}
}

func TestPackagesAreSmall(t *testing.T) {
	files := map[string]int{}
	for _, s := range sources(t) {
		if !s.test() && !s.generated() {
			files[s.pkg]++
		}
	}
	for pkg, n := range files {
		if n > maxPackageFiles {
			t.Errorf("%s: %d files, more than %d: more than one job in it?", pkg, n, maxPackageFiles)
		}
	}
}

func TestMethodsOfATypeAreTogether(t *testing.T) {
	in := map[string][]string{} // package.Type → files
	for _, s := range sources(t) {
		if s.test() || s.generated() {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			key := s.pkg + "." + receiver(f)
			if !slices.Contains(in[key], s.path) {
				in[key] = append(in[key], s.path)
			}
		}
	}
	for name, files := range in {
		if len(files) > maxMethodFiles {
			t.Errorf("%s: methods in %d files, more than %d: %s", name, len(files), maxMethodFiles, strings.Join(files, " "))
		}
	}
}

// receiver returns the name of a method's receiver type.
func receiver(f *ast.FuncDecl) string {
	e := f.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return "?"
		}
	}
}

// TestDocNamesEveryFile: a package of more than one file has a doc.go that says the
// purpose of each file.
func TestDocNamesEveryFile(t *testing.T) {
	files := map[string][]string{}
	docs := map[string]string{}
	for _, s := range sources(t) {
		if s.test() || s.generated() {
			continue
		}
		base := filepath.Base(s.path)
		if base == "doc.go" {
			docs[s.pkg] = s.text
			continue
		}
		files[s.pkg] = append(files[s.pkg], base)
	}
	for pkg, names := range files {
		if len(names) < 2 {
			continue
		}
		doc, ok := docs[pkg]
		if !ok {
			t.Errorf("%s: no doc.go", pkg)
			continue
		}
		for _, name := range names {
			if !named(doc, strings.TrimSuffix(name, ".go")) {
				t.Errorf("%s/doc.go does not say the job of %s", pkg, name)
			}
		}
	}
}

// TestDocNamesEveryFolder: the doc.go of a package names the packages in the folders below.
func TestDocNamesEveryFolder(t *testing.T) {
	docs, pkgs := map[string]string{}, map[string]bool{}
	for _, s := range sources(t) {
		if s.test() || s.generated() {
			continue
		}
		pkgs[s.pkg] = true
		if filepath.Base(s.path) == "doc.go" {
			docs[s.pkg] = s.text
		}
	}
	for pkg := range pkgs {
		for above := filepath.Dir(pkg); above != "."; above = filepath.Dir(above) {
			doc, ok := docs[above]
			if !ok {
				continue
			}
			if name := filepath.Base(pkg); !regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `\b`).MatchString(doc) {
				t.Errorf("%s/doc.go does not name the folder %s", above, pkg)
			}
			break
		}
	}
}

// named reports whether an indented line of a doc comment begins with a file. Examples are
// "send.go   what a session sends" and "- open, run: start and stop".
func named(doc, file string) bool {
	for line := range strings.Lines(doc) {
		rest, comment := strings.CutPrefix(line, "//")
		if !comment || !strings.HasPrefix(rest, "\t") && !strings.HasPrefix(rest, "  ") {
			continue
		}
		for _, word := range strings.FieldsFunc(rest, func(r rune) bool { return strings.ContainsRune(" ,\t\n:-", r) }) {
			if strings.TrimSuffix(word, ".go") == file {
				return true
			}
		}
	}
	return false
}

// TestPlainStatements: a condition does not assign to a variable that is declared before
// the statement, and a loop condition does not hide a flag.
func TestPlainStatements(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.IfStmt:
				if a, ok := n.Init.(*ast.AssignStmt); ok && a.Tok == token.ASSIGN && !onlyError(a) {
					t.Errorf("%s: assignment in an if: write it on a line of its own", s.fset.Position(n.Pos()))
				}
			case *ast.ForStmt:
				if a, ok := n.Init.(*ast.AssignStmt); ok && n.Post == nil && len(a.Rhs) == 1 {
					if id, ok := a.Rhs[0].(*ast.Ident); ok && (id.Name == "false" || id.Name == "true") {
						t.Errorf("%s: a flag in a for: declare it before the loop", s.fset.Position(n.Pos()))
					}
				}
			}
			return true
		})
	}
}

// onlyError reports whether an assignment is to err, or to err as its last variable. This
// is the usual way in Go to set an error that is declared before the statement.
func onlyError(a *ast.AssignStmt) bool {
	last, ok := a.Lhs[len(a.Lhs)-1].(*ast.Ident)
	return ok && strings.HasSuffix(strings.ToLower(last.Name), "err")
}

// TestTestdataIsInTheTree: no test looks for files outside the repository.
func TestTestdataIsInTheTree(t *testing.T) {
	for _, s := range sources(t) {
		if s.test() && s.path != "rooms_test.go" && strings.Contains(s.text, "shared/data") {
			t.Errorf("%s: needs files outside the repository: put an extract under testdata", s.path)
		}
	}
	if _, err := os.Stat("go.mod"); err != nil {
		t.Fatal(err)
	}
}
