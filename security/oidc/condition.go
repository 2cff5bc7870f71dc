package oidc

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
)

// Bounds of a condition.
const (
	maxCondition = 1024 // bytes
	maxCost      = 200_000
	maxNesting   = 2
	maxDepth     = 64
)

// environment returns the CEL environment, which is built once because that takes milliseconds.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("claims", cel.MapType(cel.StringType, cel.DynType)),
		cel.CrossTypeNumericComparisons(true),
		ext.Strings(ext.StringsVersion(4)),
		cel.ParserExpressionSizeLimit(maxCondition),
		cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateComprehensionNestingLimit(maxNesting)),
	)
})

// condition is a compiled condition.
type condition struct{ program cel.Program }

// compile checks and compiles a condition. The error is one line.
func compile(source string) (*condition, error) {
	switch {
	case strings.TrimSpace(source) == "":
		return nil, errors.New(`the condition is empty: give a condition over claims, for example "ops" in claims.groups`)
	case len(source) > maxCondition:
		return nil, fmt.Errorf("the condition has %d bytes, at most %d", len(source), maxCondition)
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("cel environment: %w", err)
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		first, _, _ := strings.Cut(issues.Errors()[0].Message, "\n")
		return nil, fmt.Errorf("condition %q: %s", source, first)
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("condition %q is of type %s and must be a bool", source, t)
	}
	program, err := env.Program(ast, cel.CostLimit(maxCost))
	if err != nil {
		return nil, fmt.Errorf("condition %q: %w", source, err)
	}
	return &condition{program}, nil
}

// holds reports whether a condition holds for claims. A condition without a value, for example
// because a claim is missing, does not hold.
func (c *condition) holds(claims map[string]any) bool {
	out, _, err := c.program.Eval(map[string]any{"claims": claims})
	if err != nil {
		return false
	}
	yes, ok := out.Value().(bool)
	return ok && yes
}
