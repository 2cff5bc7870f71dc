package expr

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/ext"
)

// MaxEventFilter is the longest source of a filter of events, in bytes.
const MaxEventFilter = 4096

// maxEventEstimate is like maxEstimate. A filter runs once for each event and consumer.
const maxEventEstimate = 200_000

// maxEventText is the longest text of an event that the estimate of the cost expects, in bytes.
const maxEventText = 1024

// Event is the value of `event` in a filter.
type Event struct {
	Type      string    `cel:"type"` // "job.submitted"
	Subject   string    `cel:"subject"`
	Message   string    `cel:"message"`
	Namespace string    `cel:"namespace"` // empty: the object has none
	Region    string    `cel:"region"`    // empty: the event is about no single region
	Number    int64     `cel:"number"`
	Log       string    `cel:"log"`
	Time      time.Time `cel:"time"`
}

// EventFilter is a compiled filter of events, safe for concurrent use.
type EventFilter struct {
	program cel.Program
}

var eventEnvironment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		ext.NativeTypes(reflect.TypeFor[Event](), ext.ParseStructTag("cel")),
		cel.Variable("event", cel.ObjectType("expr.Event")),
		cel.CrossTypeNumericComparisons(true),
		ext.Strings(ext.StringsVersion(textVersion)),
		cel.ParserExpressionSizeLimit(MaxEventFilter),
		cel.ParserRecursionLimit(maxDepth),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateComprehensionNestingLimit(maxNesting)),
	)
})

// eventFields lists the names that a filter can use after "event.".
var eventFields = sync.OnceValue(func() string {
	var out []string
	for f := range reflect.TypeFor[Event]().Fields() {
		out = append(out, f.Tag.Get("cel"))
	}
	return strings.Join(out, ", ")
})

// CompileEvent checks and compiles a filter of events. The error wraps ErrCompile. It is one line, and
// names the column if the fault has one.
func CompileEvent(source string) (*EventFilter, error) {
	if strings.TrimSpace(source) == "" {
		return nil, fmt.Errorf("%w: it is empty", ErrCompile)
	}
	if len(source) > MaxEventFilter {
		return nil, fmt.Errorf("%w: %d bytes long, the limit is %d", ErrCompile, len(source), MaxEventFilter)
	}
	env, err := eventEnvironment()
	if err != nil {
		return nil, fmt.Errorf("cel environment: %w", err)
	}
	compiled, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil, issueError(source, issues.Errors(), func(name string) string {
			return fmt.Sprintf("an event has no field %q (it has %s)", name, eventFields())
		})
	}
	if got := compiled.OutputType(); !got.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("%w: it is of type %s and must be a bool", ErrCompile, typeName(got))
	}
	cost, err := env.EstimateCost(compiled, eventSizes{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompile, err)
	}
	if cost.Max > maxEventEstimate {
		return nil, fmt.Errorf("%w: it may cost %d steps an event, the limit is %d", ErrCompile, cost.Max, maxEventEstimate)
	}
	program, err := env.Program(compiled, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(2*maxEventEstimate))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCompile, err)
	}
	return &EventFilter{program}, nil
}

// Holds evaluates a filter.
func (f *EventFilter) Holds(e *Event) (bool, error) {
	out, _, err := f.program.Eval(map[string]any{"event": e})
	if err != nil {
		return false, errors.New(strings.ReplaceAll(err.Error(), "\n", " "))
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("the value is of type %s, not a bool", out.Type().TypeName())
	}
	return holds, nil
}

// eventSizes tells CEL how long the texts of an event can be, for the estimate of the cost.
type eventSizes struct{ sizes }

// EstimateSize implements checker.CostEstimator.
func (eventSizes) EstimateSize(e checker.AstNode) *checker.SizeEstimate {
	if len(e.Path()) == 0 {
		return nil
	}
	return &checker.SizeEstimate{Max: maxEventText}
}
