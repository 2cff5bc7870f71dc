package nusa_test

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// banned maps words that this project does not use to the usual words. docs/glossary.md
// defines most of the replacements.
var banned = map[string]string{
	"amiss":     "wrong",
	"anew":      "again, from the start",
	"anybody":   "any caller, any process: name it",
	"astray":    "mispredicted",
	"betide":    "(rewrite)",
	"foresee":   "predict",
	"foreseen":  "predicted result",
	"freed":     "released",
	"heed":      "obey, handle",
	"hence":     "so",
	"hopeless":  "never fits",
	"judge":     "score, evaluate, update the status",
	"judged":    "scored, evaluated",
	"judges":    "scores, evaluates",
	"keeper":    "store writer, cache: name the thing",
	"lane":      "slot, worker",
	"lest":      "so that … not",
	"liking":    "affinity",
	"news":      "update, message",
	"orderer":   "order encoder",
	"owed":      "pending writes",
	"picture":   "view cache",
	"pulse":     "notifier",
	"reign":     "leadership",
	"reigns":    "leadership",
	"seat":      "node reference",
	"settle":    "one verb for each act: commit, choose, acknowledge",
	"settled":   "committed, chosen, acknowledged",
	"settles":   "commits, chooses, acknowledges",
	"sick":      "unhealthy",
	"somebody":  "a caller, a process: name it",
	"suited":    "feasible",
	"thereof":   "(rewrite)",
	"told":      "reported, acknowledged, ordered",
	"unheard":   "resyncing",
	"vain":      "runs since healthy",
	"whence":    "from where",
	"whoever":   "the caller, the process: name it",
	"office":    "leadership, term",
	"heard":     "last seen, received",
	"halt":      "stop",
	"rescue":    "reclaim",
	"flying":    "in flight",
	"unheeded":  "ignored",
	"wholly":    "completely",
	"tidings":   "message",
	"forthwith": "at once",
}

// bannedNames are words that are allowed in sentences, but not in names of the code.
var bannedNames = map[string]string{
	"away":     "disconnected",
	"doubt":    "start uncertain, suspect",
	"fare":     "near result",
	"lack":     "unplaced since, missing",
	"promises": "reserve reclaimed",
	"todo":     "pending plan",
	"worth":    "fit score",
}

// wireNames matches names of the protocol and of stored data. These cannot be replaced,
// because that would break other versions and scripts.
var wireNames = regexp.MustCompile(`\b(Get)?(Heard|UnlessHeard|Doubt|NearFare)\b|json:"(Sick|Vain|Doubt)|codec:"[A-Za-z]+"|"(Sick|Vain)":|\b(unless_heard|heard|doubt) = \d+|"heard"|"unlessHeard"|"doubt"|` + "`(heard|unless_heard|doubt)`")

var wordOf = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// TestNames: names of the code do not use the words of bannedNames.
func TestNames(t *testing.T) {
	for _, s := range sources(t) {
		if s.generated() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok || id.Obj == nil || wireNames.MatchString(id.Name) {
				return true
			}
			if o, ok := id.Obj.Decl.(ast.Node); !ok || o == nil {
				return true
			}
			for _, word := range wordOf.FindAllString(id.Name, -1) {
				if instead, ok := bannedNames[strings.ToLower(word)]; ok {
					t.Errorf("%s: name %s: say %s", s.fset.Position(id.Pos()), id.Name, instead)
				}
			}
			return true
		})
	}
}

// TestWords: identifiers, comments, errors and pages do not use banned words.
func TestWords(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "node_modules") {
				return filepath.SkipDir
			}
			return nil
		}
		switch filepath.Ext(name) {
		case ".go", ".proto", ".md", ".sh", ".yaml":
		default:
			return nil
		}
		if path == "words_test.go" || strings.HasSuffix(name, ".pb.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			for _, word := range wordOf.FindAllString(wireNames.ReplaceAllString(line, ""), -1) {
				if instead, ok := banned[strings.ToLower(word)]; ok {
					t.Errorf("%s:%d: %q: say %s", path, n, word, instead)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
