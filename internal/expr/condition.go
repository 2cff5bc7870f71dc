package expr

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/ext"
	"google.golang.org/protobuf/types/known/structpb"
)

// Bounds of a condition. It is evaluated at most once for each call.
const (
	// MaxCondition is the longest source of a condition, in bytes.
	MaxCondition = 4096
	// maxConditionEstimate is like maxEstimate.
	maxConditionEstimate = 1_000_000
)

// ErrNoJob is the error of a condition that reads the job of a request without one.
var ErrNoJob = errors.New("it depends on the job")

// Request is the value of `request` in a condition.
type Request struct {
	Principal string `cel:"principal"` // "operator/jane" or "token/ACCESSOR"
	Verb      string `cel:"verb"`
	Kind      string `cel:"kind"`
	Namespace string `cel:"namespace"` // empty: the kind has none
	Region    string `cel:"region"`    // empty: the kind has none
	Name      string `cel:"name"`
}

// Job is the value of `job` in a condition.
type Job struct {
	Namespace string            `cel:"namespace"`
	Name      string            `cel:"name"`
	Type      string            `cel:"type"` // service, batch or system
	Priority  int64             `cel:"priority"`
	Labels    map[string]string `cel:"labels"`
	Groups    []Group           `cel:"groups"` // sorted by name
}

// Group is an element of `job.groups`.
type Group struct {
	Name        string   `cel:"name"`
	Count       int64    `cel:"count"`
	Pool        string   `cel:"pool"`
	Dedicated   bool     `cel:"dedicated"`
	Regions     []string `cel:"regions"` // names in regions.allow
	Constraints []string `cel:"constraints"`
	Volumes     []Volume `cel:"volumes"` // sorted by name
	StaticPorts []int64  `cel:"static_ports"`
	Tasks       []Task   `cel:"tasks"` // sorted by name
}

// Volume is an element of `volumes` of a group.
type Volume struct {
	Name     string `cel:"name"`
	Source   string `cel:"source"`
	ReadOnly bool   `cel:"read_only"`
}

// Task is an element of `tasks` of a group.
type Task struct {
	Name    string            `cel:"name"`
	Driver  string            `cel:"driver"`
	Config  *structpb.Struct  `cel:"config"`
	CPU     float64           `cel:"cpu_cores"`
	Memory  int64             `cel:"memory_mib"`
	Env     map[string]string `cel:"env"`
	Secrets []string          `cel:"secrets"`
}

// Condition is a compiled condition, safe for concurrent use.
type Condition struct {
	program cel.Program
	// ReadsJob: the condition reads `job`.
	ReadsJob bool
	// fields are the fields of `request` that the condition reads. whole: it may read all of them.
	fields []string
	whole  bool
}

// ReadsRequest reports whether the condition reads a field of `request`.
func (c *Condition) ReadsRequest(field string) bool {
	return c.whole || slices.Contains(c.fields, field)
}

// readsOf returns the fields of `request` that an expression reads. whole: it may read all of them.
func readsOf(e ast.Expr) (fields []string, whole bool) {
	named := 0 // how often `request` is named, less how often one of its fields is
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		switch {
		case e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == "request":
			named++
		case e.Kind() == ast.SelectKind && e.AsSelect().Operand().Kind() == ast.IdentKind &&
			strings.TrimPrefix(e.AsSelect().Operand().AsIdent(), ".") == "request":
			named--
			fields = append(fields, e.AsSelect().FieldName())
		}
	}))
	return fields, named != 0
}

// conditions are the environments of conditions without and with `job`.
var conditions = sync.OnceValues(func() (out [2]*cel.Env, err error) {
	out[0], err = cel.NewEnv(
		ext.NativeTypes(reflect.TypeFor[Request](), reflect.TypeFor[Job](), ext.ParseStructTag("cel")),
		cel.Variable("request", cel.ObjectType("expr.Request")),
		cel.CrossTypeNumericComparisons(true),
		ext.Strings(ext.StringsVersion(textVersion)),
		cel.ParserExpressionSizeLimit(MaxCondition),
		cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateComprehensionNestingLimit(maxNesting)),
	)
	if err == nil {
		out[1], err = out[0].Extend(cel.Variable("job", cel.ObjectType("expr.Job")))
	}
	return out, err
})

// CompileCondition checks and compiles a condition. The error wraps ErrCompile. It is one line, and
// names the column if the fault has one.
func CompileCondition(source string) (*Condition, error) {
	if strings.TrimSpace(source) == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrCompile)
	}
	if len(source) > MaxCondition {
		return nil, fmt.Errorf("%w: %d bytes long, the limit is %d", ErrCompile, len(source), MaxCondition)
	}
	envs, err := conditions()
	if err != nil {
		return nil, fmt.Errorf("cel environment: %w", err)
	}
	env, readsJob := envs[0], false
	compiled, issues := env.Compile(source)
	if issues.Err() != nil {
		env, readsJob = envs[1], true
		compiled, issues = env.Compile(source)
	}
	if issues.Err() != nil {
		return nil, issueError(source, issues.Errors(), func(name string) string {
			return fmt.Sprintf("there is no field %q: docs/design/rights.md lists those of `request` and `job`", name)
		})
	}
	if got := compiled.OutputType(); !got.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("%w: it is of type %s and must be a bool", ErrCompile, typeName(got))
	}
	cost, err := env.EstimateCost(compiled, conditionSizes{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompile, err)
	}
	if cost.Max > maxConditionEstimate {
		return nil, fmt.Errorf("%w: it may cost %d steps, the limit is %d", ErrCompile, cost.Max, maxConditionEstimate)
	}
	program, err := env.Program(compiled, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(2*maxConditionEstimate))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompile, err)
	}
	out := &Condition{program: program, ReadsJob: readsJob}
	out.fields, out.whole = readsOf(compiled.NativeRep().Expr())
	return out, nil
}

// Holds evaluates a condition. job is nil if the request has none.
func (c *Condition) Holds(request *Request, job *Job) (bool, error) {
	values := map[string]any{"request": request}
	switch {
	case c.ReadsJob && job == nil:
		return false, ErrNoJob
	case c.ReadsJob:
		values["job"] = job
	}
	out, _, err := c.program.Eval(values)
	if err != nil {
		return false, errors.New(strings.ReplaceAll(err.Error(), "\n", " "))
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("the value is of type %s, not a bool", out.Type().TypeName())
	}
	return holds, nil
}

// conditionSizes tells CEL how large a job can be, for the estimate of the cost.
type conditionSizes struct{ sizes }

// EstimateSize implements checker.CostEstimator.
func (conditionSizes) EstimateSize(e checker.AstNode) *checker.SizeEstimate {
	path := e.Path()
	if len(path) == 0 {
		return nil
	}
	switch path[len(path)-1] {
	case "groups", "labels", "regions":
		return &checker.SizeEstimate{Max: 64}
	case "volumes", "constraints", "secrets":
		return &checker.SizeEstimate{Max: 32}
	case "static_ports":
		return &checker.SizeEstimate{Max: 64}
	case "tasks":
		return &checker.SizeEstimate{Max: 16}
	case "env":
		return &checker.SizeEstimate{Max: 256}
	}
	return &checker.SizeEstimate{Max: 253}
}
