package expr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/ext"
)

// maxParameter is the longest parameter that the estimate of the cost expects, in bytes. A search in the parts of
// a parameter is estimated at 30,000.
const maxParameter = 4096

// When is a compiled condition over the parameters of a workflow, safe for concurrent use.
type When struct {
	program cel.Program
}

var whenEnvironment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("params", cel.MapType(cel.StringType, cel.StringType)),
		cel.CrossTypeNumericComparisons(true),
		ext.Strings(ext.StringsVersion(textVersion)),
		cel.ParserExpressionSizeLimit(MaxSource),
		cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateComprehensionNestingLimit(maxNesting)),
	)
})

// CompileWhen checks and compiles a condition over parameters. names are the names of all parameters, sorted.
// The error wraps ErrCompile. It is one line, and names the column if the fault has one.
func CompileWhen(source string, names []string) (*When, error) {
	if len(source) > MaxSource {
		return nil, fmt.Errorf("%w: %d bytes long, the limit is %d", ErrCompile, len(source), MaxSource)
	}
	env, err := whenEnvironment()
	if err != nil {
		return nil, fmt.Errorf("cel environment: %w", err)
	}
	compiled, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil, issueError(source, issues.Errors(), func(name string) string { return fmt.Sprintf("there is no field %q", name) })
	}
	if got := compiled.OutputType(); !got.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("%w: it is of type %s and must be a bool", ErrCompile, typeName(got))
	}
	for _, name := range parametersOf(compiled.NativeRep().Expr()) {
		if _, known := slices.BinarySearch(names, name); !known {
			return nil, fmt.Errorf("%w: there is no parameter %q (there are: %s)", ErrCompile, name, strings.Join(names, ", "))
		}
	}
	cost, err := env.EstimateCost(compiled, whenSizes{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompile, err)
	}
	if cost.Max > maxEstimate {
		return nil, fmt.Errorf("%w: it may cost %d steps, the limit is %d", ErrCompile, cost.Max, maxEstimate)
	}
	program, err := env.Program(compiled, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompile, err)
	}
	return &When{program}, nil
}

// parametersOf returns the parameters that an expression names as params.NAME or params["NAME"].
func parametersOf(e ast.Expr) (out []string) {
	isParams := func(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "params" }
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		switch {
		case e.Kind() == ast.SelectKind && isParams(e.AsSelect().Operand()):
			out = append(out, e.AsSelect().FieldName())
		case e.Kind() == ast.CallKind && e.AsCall().FunctionName() == "_[_]_" && isParams(e.AsCall().Args()[0]):
			if key := e.AsCall().Args()[1]; key.Kind() == ast.LiteralKind {
				if name, ok := key.AsLiteral().Value().(string); ok {
					out = append(out, name)
				}
			}
		}
	}))
	return out
}

// Holds evaluates a condition.
func (w *When) Holds(params map[string]string) (bool, error) {
	out, _, err := w.program.Eval(map[string]any{"params": params})
	if err != nil {
		return false, errors.New(strings.ReplaceAll(err.Error(), "\n", " "))
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("the value is of type %s, not a bool", out.Type().TypeName())
	}
	return holds, nil
}

// whenSizes tells CEL how long parameters can be, for the estimate of the cost.
type whenSizes struct{ sizes }

// EstimateSize implements checker.CostEstimator.
func (whenSizes) EstimateSize(e checker.AstNode) *checker.SizeEstimate {
	switch len(e.Path()) {
	case 0:
		return nil
	case 1:
		return &checker.SizeEstimate{Max: 24} // params itself
	}
	return &checker.SizeEstimate{Max: maxParameter}
}
