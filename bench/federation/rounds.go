package federation

import (
	"reflect"
	"slices"
	"strconv"

	"github.com/nusa-scheduler/nusa/bench/report"
)

// maxRounds bounds Options.Rounds.
const maxRounds = 99

// middle returns a result whose figures are the medians of the rounds' figures. A count, for example of
// ended sessions, is the greatest of the rounds. Ratios are the medians of the rounds' ratios, so a slow
// hour of the machine, which slows the server and the bare parts of a round alike, changes them little.
// An incomplete round counts only without a complete one, because it lacks figures.
func middle(rounds []*Result) *Result {
	out, whole := &Result{}, slices.DeleteFunc(slices.Clone(rounds), func(r *Result) bool { return r.Incomplete })
	if len(whole) > 0 && len(whole) < len(rounds) {
		out = middle(whole)
		out.Incomplete = true
		return out
	}
	merge(reflect.ValueOf(out).Elem(), each(rounds, func(r *Result) reflect.Value { return reflect.ValueOf(r).Elem() }))
	if len(rounds) < 2 {
		return out
	}
	out.Rounds = len(rounds)
	out.RatiosOfRounds = map[string][]float64{}
	for name := range out.Ratios {
		for _, r := range rounds {
			if ratio, measured := r.Ratios[name]; measured {
				out.RatiosOfRounds[name] = append(out.RatiosOfRounds[name], ratio)
			}
		}
	}
	return out
}

// merge sets a value to the middle of the values of the rounds: numbers as middle says, texts from the
// first round, and flags if one round has them. A part that a round lacks is skipped there.
func merge(to reflect.Value, from []reflect.Value) {
	switch to.Kind() {
	case reflect.Float64:
		to.SetFloat(median(each(from, reflect.Value.Float)))
	case reflect.Int, reflect.Int64:
		to.SetInt(slices.Max(each(from, reflect.Value.Int)))
	case reflect.Bool:
		to.SetBool(slices.ContainsFunc(from, reflect.Value.Bool))
	case reflect.Struct:
		for i := range to.NumField() {
			merge(to.Field(i), each(from, func(v reflect.Value) reflect.Value { return v.Field(i) }))
		}
	case reflect.Pointer:
		from = present(from)
		if len(from) > 0 {
			to.Set(reflect.New(to.Type().Elem()))
			merge(to.Elem(), each(from, reflect.Value.Elem))
		}
	case reflect.Map:
		mergeMap(to, present(from))
	default:
		to.Set(from[0])
	}
}

// mergeMap merges the values of each key. A key that a round lacks is skipped there.
func mergeMap(to reflect.Value, from []reflect.Value) {
	if len(from) == 0 {
		return
	}
	to.Set(reflect.MakeMap(to.Type()))
	missing := func(v reflect.Value) bool { return !v.IsValid() }
	for _, m := range from {
		for _, key := range m.MapKeys() {
			values := slices.DeleteFunc(each(from, func(m reflect.Value) reflect.Value { return m.MapIndex(key) }), missing)
			value := reflect.New(to.Type().Elem()).Elem()
			merge(value, values)
			to.SetMapIndex(key, value)
		}
	}
}

func present(from []reflect.Value) []reflect.Value {
	return slices.DeleteFunc(slices.Clone(from), reflect.Value.IsNil)
}

func each[A, B any](in []A, of func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = of(a)
	}
	return out
}

// median returns the middle number, or the mean of the two in the middle.
func median(of []float64) float64 {
	s := slices.Sorted(slices.Values(of))
	n := len(s)
	if n%2 == 1 {
		return s[n/2]
	}
	return report.Round((s[n/2-1]+s[n/2])/2, 4)
}

// RangeText returns the least and the greatest ratio of the rounds, or "" for one round.
func (r *Result) RangeText(name string) string {
	of := r.RatiosOfRounds[name]
	if len(of) == 0 {
		return ""
	}
	format := func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
	return " (" + format(slices.Min(of)) + " to " + format(slices.Max(of)) + ")"
}
