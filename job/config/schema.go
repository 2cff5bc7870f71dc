package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/nusa-scheduler/nusa/internal/suggest"
)

// Kind is the type of a field's value.
type Kind int

// The kinds. Any allows every value, also for a kind of a later version.
const (
	Any Kind = iota
	Text
	Bool
	Integer   // a whole number
	Number    //
	Texts     // a list of text
	TextMap   // a map whose values are text
	ScalarMap // a map whose values are text, numbers, true or false
	Map       // a map with any values
)

// Bounds of a config.
const (
	// maxList bounds the entries of a list.
	maxList = 1024
	// maxArgument bounds an entry of a list, in bytes. Linux starts no process with a longer
	// argument (MAX_ARG_STRLEN without the final zero).
	maxArgument = 128<<10 - 1
	// maxText bounds a value of a map, in bytes.
	maxText = 64 << 10
	// MaxFields bounds the fields of a schema that a plugin reports, MaxValues the values of such a field,
	// and MaxHelp each of its texts, in bytes.
	MaxFields = 64
	MaxValues = 32
	MaxHelp   = 128
)

// Field is one field of a driver's config. Its conditions apply if it is in the config.
type Field struct {
	Name string
	Kind Kind
	// Required: the field must be there, and a text must not be empty.
	Required bool
	// Values are the values of a text. None: any text.
	Values []string
	// Min and Max bound a number. Both 0: any number.
	Min, Max float64
	// Absolute: a text is an absolute path.
	Absolute bool
	// Secret: no problem shows the value.
	Secret bool
	// Help says what the field is, in a few words.
	Help string

	// Plugins do not report the following conditions. filled refuses an empty text. most bounds a text,
	// in bytes. more checks a value of the right kind. It is not called for a text that has variables
	// still.
	filled bool
	most   int
	more   func(v any, at string, fail Report)
}

// Schema is the form of a driver's config: its fields, in the order in which messages name them.
type Schema []Field

// Report gets a problem. at is the path below the config, such as ".args[3]".
type Report func(at, text string)

// Stage says when a config is checked.
type Stage int

const (
	// Submitted: the texts can have variables, ${NUSA_…}. Such a text meets all conditions on its content.
	Submitted Stage = iota
	// Filled: the variables have their values.
	Filled
)

// Check reports each problem of a config, in the order of the names of the fields.
func (s Schema) Check(config map[string]any, stage Stage, fail Report) {
	for _, k := range slices.Sorted(maps.Keys(config)) {
		i := slices.IndexFunc(s, func(f Field) bool { return f.Name == k })
		if i < 0 {
			fail("."+k, "unknown field"+s.hint(k))
			continue
		}
		s[i].check(config[k], stage, "."+k, fail)
	}
	for i := range s {
		f := &s[i]
		if _, has := config[f.Name]; f.Required && !has {
			fail("."+f.Name, "is missing"+f.help())
		}
	}
}

// Error returns the first problem of a config, or nil. Its text begins with the path of the field, such as
// "config.image".
func (s Schema) Error(config map[string]any, stage Stage) (err error) {
	s.Check(config, stage, func(at, text string) {
		if err == nil {
			err = errors.New("config" + at + ": " + text)
		}
	})
	return err
}

func (s Schema) hint(name string) string {
	known := make([]string, len(s))
	for i := range s {
		known[i] = s[i].Name
	}
	if near := suggest.Nearest(name, known); near != "" {
		return fmt.Sprintf(", did you mean %q?", near)
	}
	if len(known) == 0 {
		return ": the driver has no settings"
	}
	return ", known here are " + strings.Join(known, ", ")
}

func (f *Field) help() string {
	if f.Help == "" {
		return ""
	}
	return ": " + f.Help
}

// check reports the problems of one value.
func (f *Field) check(v any, stage Stage, at string, fail Report) {
	switch f.Kind {
	case Text:
		f.text(v, stage, at, fail)
		return
	case Bool:
		if _, ok := v.(bool); !ok {
			fail(at, "must be true or false")
		}
		return
	case Integer, Number:
		f.number(v, at, fail)
		return
	case Texts:
		if !textList(v, at, fail) {
			return
		}
	case TextMap, ScalarMap, Map:
		if !scalarMap(f.Kind, v, at, fail) {
			return
		}
	}
	if f.more != nil {
		f.more(v, at, fail)
	}
}

func (f *Field) text(v any, stage Stage, at string, fail Report) {
	s, ok := v.(string)
	later := stage == Submitted && strings.Contains(s, "${")
	switch most := f.most; {
	case !ok:
		fail(at, notText(v))
	case s == "" && (f.Required || f.filled):
		fail(at, "must not be empty"+f.help())
	case most > 0 && len(s) > most:
		fail(at, fmt.Sprintf("%d bytes long, the limit is %d", len(s), most))
	case !plain(s, at, fail), later:
	case len(f.Values) > 0 && !slices.Contains(f.Values, s):
		fail(at, "must be one of "+strings.Join(f.Values, ", ")+f.not(s))
	case f.Absolute && !strings.HasPrefix(s, "/"):
		fail(at, "must be an absolute path"+f.not(s))
	case f.more != nil:
		f.more(s, at, fail)
	}
}

// not returns what a wrong text is, if it may be shown.
func (f *Field) not(s string) string {
	if f.Secret {
		return ""
	}
	return fmt.Sprintf(", not %q", clip(s))
}

func (f *Field) number(v any, at string, fail Report) {
	n, ok := toNumber(v)
	whole := f.Kind == Integer
	what := "a number"
	if whole {
		what = "a whole number"
	}
	switch {
	case !ok, math.IsNaN(n), whole && (n != math.Trunc(n) || math.Abs(n) > 1<<53):
		fail(at, "must be "+what+f.bounds())
	case (f.Min != 0 || f.Max != 0) && (n < f.Min || n > f.Max):
		fail(at, "must be "+what+f.bounds())
	case f.more != nil:
		f.more(v, at, fail)
	}
}

// toNumber converts a number. Numbers of job files are float64.
func toNumber(v any) (float64, bool) {
	switch n := v.(type) {
	case float64:
		return n, true
	case int:
		return float64(n), true
	case int64:
		return float64(n), true
	}
	return 0, false
}

func (f *Field) bounds() string {
	if f.Min == 0 && f.Max == 0 {
		return ""
	}
	return fmt.Sprintf(" of %s to %s", decimal(f.Min), decimal(f.Max))
}

// decimal writes a number without an exponent.
func decimal(n float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.6f", n), "0"), ".")
}

// textList reports whether a value is a list of text.
func textList(v any, at string, fail Report) bool {
	list, ok := v.([]any)
	if !ok {
		fail(at, "must be a list of text")
		return false
	}
	if len(list) > maxList {
		fail(at, fmt.Sprintf("%d entries, the limit is %d", len(list), maxList))
		return false
	}
	for i, item := range list {
		s, is := item.(string)
		at := fmt.Sprintf("%s[%d]", at, i)
		switch {
		case !is:
			fail(at, notText(item))
			ok = false
		case len(s) > maxArgument:
			fail(at, fmt.Sprintf("%d bytes, at most %d: Linux starts no process with more; put the text into a file with templates", len(s), maxArgument))
			ok = false
		default:
			ok = plain(s, at, fail) && ok
		}
	}
	return ok
}

// scalarMap reports whether a value is a map of a kind.
func scalarMap(kind Kind, v any, at string, fail Report) bool {
	m, ok := v.(map[string]any)
	if !ok {
		fail(at, "must be a mapping")
		return false
	}
	if kind == Map {
		return true
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		at := Key(at, k)
		switch x := m[k].(type) {
		case string:
			if len(x) > maxText {
				fail(at, fmt.Sprintf("%d bytes long, the limit is %d", len(x), maxText))
				ok = false
				continue
			}
			ok = plain(x, at, fail) && ok
		case bool, float64, int, int64:
			if kind == TextMap {
				fail(at, notText(m[k]))
				ok = false
			}
		default:
			ok = false
			if kind == TextMap {
				fail(at, notText(m[k]))
				continue
			}
			fail(at, "must be text, a number, true or false")
		}
	}
	return ok
}

// Key returns the path of a key that may have dots.
func Key(at, k string) string { return fmt.Sprintf("%s[%q]", at, k) }

// notText is the problem of a value that is no text.
func notText(v any) string {
	switch v.(type) {
	case nil:
		return "has no value, it must be text"
	case bool, float64, int, int64:
		return "must be text: write it in quotes"
	}
	return "must be text"
}

// plain reports whether a text can be given to a process.
func plain(s, at string, fail Report) bool {
	switch {
	case !utf8.ValidString(s):
		fail(at, "is not UTF-8")
	case strings.ContainsRune(s, 0):
		fail(at, "has a zero byte")
	default:
		return true
	}
	return false
}

// clip shortens a text for a message.
func clip(s string) string {
	const most = 40
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "…"
}
