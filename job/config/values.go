package config

import (
	"errors"
	"fmt"
	"strconv"
)

// Values are the fields of a config that Read accepted. A field that is not there has the zero value.
type Values map[string]any

// Read checks the config of a task whose variables have their values. Its error names the field.
func (s Schema) Read(config map[string]any) (Values, error) {
	if err := s.Error(config, Filled); err != nil {
		return nil, err
	}
	return config, nil
}

// Refuses returns the first problem of the config of a task whose variables have their values. Without a
// schema there is none.
func (s Schema) Refuses(config map[string]any) error {
	if s == nil {
		return nil
	}
	return s.Error(config, Filled)
}

// Has reports whether a field is there.
func (v Values) Has(name string) bool { _, has := v[name]; return has }

// Text returns a text, or the default without one.
func (v Values) Text(name, otherwise string) string {
	if s, ok := v[name].(string); ok {
		return s
	}
	return otherwise
}

// Bool returns a field of the kind Bool.
func (v Values) Bool(name string) bool { b, _ := v[name].(bool); return b }

// Integer returns a whole number, or the default without one.
func (v Values) Integer(name string, otherwise int64) int64 {
	if n, ok := toNumber(v[name]); ok {
		return int64(n)
	}
	return otherwise
}

// Texts returns a list of text. It is nil only without the field.
func (v Values) Texts(name string) []string {
	list, ok := v[name].([]any)
	if !ok {
		return nil
	}
	out := make([]string, len(list))
	for i := range list {
		out[i], _ = list[i].(string)
	}
	return out
}

// Map returns a map.
func (v Values) Map(name string) Values { m, _ := v[name].(map[string]any); return m }

// TextMap returns a map of scalars, each as text. It is nil only without the field.
func (v Values) TextMap(name string) map[string]string {
	m, ok := v[name].(map[string]any)
	if !ok {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, x := range m {
		out[k] = scalar(x)
	}
	return out
}

func scalar(x any) string {
	if n, ok := x.(float64); ok {
		return strconv.FormatFloat(n, 'f', -1, 64)
	}
	return fmt.Sprint(x)
}

// CheckSchema returns an error if a plugin's schema breaks its bounds, with the name of the field.
func CheckSchema(s Schema) error {
	if len(s) > MaxFields {
		return fmt.Errorf("there are %d fields, at most %d", len(s), MaxFields)
	}
	seen := map[string]bool{}
	for i := range s {
		f := &s[i]
		if !validName(f.Name) {
			return fmt.Errorf("%q is not a name: 1 to 63 of a-z, 0-9 and _, starting with a letter", clip(f.Name))
		}
		if seen[f.Name] {
			return fmt.Errorf("%s occurs twice", f.Name)
		}
		seen[f.Name] = true
		if err := f.sound(); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return nil
}

func (f *Field) sound() error {
	number := f.Kind == Integer || f.Kind == Number
	switch {
	case len(f.Values) > MaxValues:
		return fmt.Errorf("there are %d values, at most %d", len(f.Values), MaxValues)
	case len(f.Values) > 0 && f.Kind != Text:
		return errors.New("only a text has values")
	case f.Absolute && f.Kind != Text:
		return errors.New("only a text is a path")
	case (f.Min != 0 || f.Max != 0) && !number:
		return errors.New("only a number has a least and a greatest value")
	case !(f.Min <= f.Max):
		return errors.New("the least value is above the greatest")
	case len(f.Help) > MaxHelp:
		return fmt.Errorf("the help has %d bytes, at most %d", len(f.Help), MaxHelp)
	}
	for _, v := range f.Values {
		if v == "" || len(v) > maxName {
			return fmt.Errorf("a value has %d bytes, it must have 1 to %d", len(v), maxName)
		}
	}
	return nil
}

const maxName = 64

func validName(s string) bool {
	if s == "" || len(s) >= maxName || s[0] < 'a' || s[0] > 'z' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_') {
			return false
		}
	}
	return true
}
