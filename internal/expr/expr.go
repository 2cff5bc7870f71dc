package expr

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/ext"
)

// Kind is the type of an expression's value.
type Kind int

const (
	// Bool is the kind of constraints and affinities.
	Bool Kind = iota
	// String is the kind of spread.by.
	String
)

func (k Kind) String() string {
	if k == String {
		return "string"
	}
	return "bool"
}

func (k Kind) celType() *cel.Type {
	if k == String {
		return cel.StringType
	}
	return cel.BoolType
}

// Bounds of an expression.
const (
	// MaxSource is the longest source, in bytes.
	MaxSource = 1024
	// maxEstimate bounds the estimated worst-case cost of one evaluation, in CEL cost
	// units (about one per operation). The cost matters because a scheduler evaluates an
	// expression for every node of a region.
	maxEstimate = 100_000
	// maxCost is the cost at which a running evaluation is stopped. It is above every
	// accepted estimate, so it only matters when an estimate was wrong.
	maxCost = 2 * maxEstimate
	// maxNesting bounds macros such as exists() inside one another.
	maxNesting = 2
	// maxDepth bounds the depth of the syntax tree.
	maxDepth = 64
	// textVersion is the version of CEL's functions for texts. From version 5 on their costs are known. So a
	// chain of calls such as replace is refused: each call can make the text fifty times longer.
	textVersion = 5
)

// ErrCompile is wrapped by every error of Compile.
var ErrCompile = errors.New("expression does not compile")

// Node is the value of `node` in an expression. Nil maps and lists are empty.
type Node struct {
	ID      string            `cel:"id"`
	Name    string            `cel:"name"`
	Region  string            `cel:"region"`
	Pool    string            `cel:"pool"`
	CPU     float64           `cel:"cpu_cores"`  // cores offered to the scheduler
	Memory  int64             `cel:"memory_mib"` // MiB offered to the scheduler
	Disk    int64             `cel:"disk_mib"`   // MiB offered to the scheduler
	Arch    string            `cel:"arch"`       // "x86_64", as the kernel reports it
	OS      string            `cel:"os"`         // "linux"
	Kernel  string            `cel:"kernel"`
	Version string            `cel:"version"` // the version of the agent
	Labels  map[string]string `cel:"labels"`
	Drivers []string          `cel:"drivers"`    // the healthy drivers
	GPUs    []string          `cel:"gpu_models"` // one entry per device
}

// fields lists the names that an expression can use after "node.".
var fields = func() []string {
	t := reflect.TypeFor[Node]()
	var out []string
	for i := range t.NumField() {
		out = append(out, t.Field(i).Tag.Get("cel"))
	}
	return out
}()

// Program is a compiled expression, safe for concurrent use.
type Program struct {
	program cel.Program
}

// environment returns the CEL environment, which is built once because that takes
// milliseconds.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		ext.NativeTypes(reflect.TypeFor[Node](), ext.ParseStructTag("cel")),
		cel.Variable("node", cel.ObjectType("expr.Node")),
		// node.cpu_cores >= 4 compares a double with an int.
		cel.CrossTypeNumericComparisons(true),
		ext.Strings(ext.StringsVersion(textVersion)),
		cel.ParserExpressionSizeLimit(MaxSource),
		cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateComprehensionNestingLimit(maxNesting)),
	)
})

// Compile checks and compiles an expression. The error wraps ErrCompile. It is one line,
// and names the column if the fault has one.
func Compile(kind Kind, source string) (*Program, error) {
	if strings.TrimSpace(source) == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrCompile)
	}
	if len(source) > MaxSource {
		return nil, fmt.Errorf("%w: %d bytes long, the limit is %d", ErrCompile, len(source), MaxSource)
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("cel environment: %w", err)
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil, issueError(source, issues.Errors(), unknownField)
	}
	if got := ast.OutputType(); !got.IsExactType(kind.celType()) {
		return nil, fmt.Errorf("%w: it is of type %s and must be a %s", ErrCompile, typeName(got), kind)
	}
	cost, err := env.EstimateCost(ast, sizes{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompile, err)
	}
	if cost.Max > maxEstimate {
		return nil, fmt.Errorf("%w: it may cost %d steps a node, the limit is %d", ErrCompile, cost.Max, maxEstimate)
	}
	program, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompile, err)
	}
	return &Program{program}, nil
}

// Bool evaluates a program of kind Bool. If the program cannot be evaluated, for example
// because the node does not have a label, the value is false and note says why. Otherwise
// note is empty.
func (p *Program) Bool(n *Node) (ok bool, note string) {
	v, note := p.eval(n)
	ok, _ = v.(bool)
	return ok, note
}

// Text evaluates a program of kind String. If the program cannot be evaluated, the value
// is "" and note says why. Otherwise note is empty.
func (p *Program) Text(n *Node) (value, note string) {
	v, note := p.eval(n)
	value, _ = v.(string)
	return value, note
}

func (p *Program) eval(n *Node) (any, string) {
	out, _, err := p.program.Eval(map[string]any{"node": n})
	if err != nil {
		return nil, evalNote(err)
	}
	return out.Value(), ""
}

// evalNote makes an evaluation error of CEL readable. CEL has no typed errors. Its text
// "no such key: rack" means that the node does not have the label or map key "rack".
func evalNote(err error) string {
	text := err.Error()
	if _, key, found := strings.Cut(text, "no such key: "); found {
		return fmt.Sprintf("the node has no %q", key)
	}
	return strings.ReplaceAll(text, "\n", " ")
}

// unknownField says that a node does not have a field.
func unknownField(name string) string {
	return fmt.Sprintf("a node has no field %q (it has %s)", name, strings.Join(fields, ", "))
}

// issueError returns the first of CEL's compile errors as one line. unknown returns the text for a
// field that does not exist.
func issueError(source string, all []*common.Error, unknown func(name string) string) error {
	first := all[0]
	message := first.Message
	if _, name, found := strings.Cut(message, "undefined field '"); found {
		name = strings.TrimSuffix(name, "'")
		message = unknown(name)
	}
	message, _, _ = strings.Cut(message, "\n")
	message = strings.TrimPrefix(message, "Syntax error: ")
	// CEL's parser lists every token that it expected.
	message, _, _ = strings.Cut(message, " expecting ")
	message = strings.ReplaceAll(message, "mismatched input '<EOF>'", "the expression ends too early")
	at := ""
	if first.Location != nil && first.Location.Line() > 0 {
		at = fmt.Sprintf(" at column %d", first.Location.Column()+1)
		if strings.Contains(source, "\n") {
			at = fmt.Sprintf(" at line %d, column %d", first.Location.Line(), first.Location.Column()+1)
		}
	}
	return fmt.Errorf("%w%s: %s", ErrCompile, at, message)
}

func typeName(t *cel.Type) string {
	if t.String() == "expr.Node" {
		return "node"
	}
	return t.String()
}

// sizes tells CEL how large a node can be, for the estimate of the cost: at most 64
// labels, drivers and devices, and texts of at most 253 bytes.
type sizes struct{}

func (sizes) EstimateSize(e checker.AstNode) *checker.SizeEstimate {
	path := e.Path()
	if len(path) == 2 {
		switch path[1] {
		case "labels", "drivers", "gpu_models":
			return &checker.SizeEstimate{Max: 64}
		}
	}
	if len(path) > 0 {
		return &checker.SizeEstimate{Max: 253}
	}
	return nil
}

func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
