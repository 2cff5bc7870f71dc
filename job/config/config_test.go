package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestCheck: what each kind takes and refuses.
func TestCheck(t *testing.T) {
	form := Schema{
		{Name: "text", Kind: Text, Required: true, Help: "what it is"}, {Name: "word", Kind: Text, Values: []string{"a", "b"}},
		{Name: "secret", Kind: Text, Values: []string{"x"}, Secret: true}, {Name: "path", Kind: Text, Absolute: true},
		{Name: "flag", Kind: Bool}, {Name: "whole", Kind: Integer, Min: 1, Max: 9}, {Name: "number", Kind: Number},
		{Name: "list", Kind: Texts}, {Name: "texts", Kind: TextMap}, {Name: "scalars", Kind: ScalarMap}, {Name: "map", Kind: Map}, {Name: "any"},
	}
	type m = map[string]any
	for _, c := range []struct {
		name string
		v    any
		want string // empty: it is taken
	}{
		{"text", "x", ""}, {"text", "", "must not be empty: what it is"}, {"text", 1.0, "must be text: write it in quotes"},
		{"text", nil, "has no value, it must be text"}, {"text", []any{}, "must be text"}, {"text", "a\x00", "has a zero byte"}, {"text", "a\xff", "is not UTF-8"},
		{"word", "a", ""}, {"word", "c", `must be one of a, b, not "c"`}, {"word", "${NUSA_JOB}", ""},
		{"word", strings.Repeat("é", 99), `must be one of a, b, not "` + strings.Repeat("é", 40) + `…"`},
		{"secret", "pass", "must be one of x"}, {"path", "/a", ""}, {"path", "a", `must be an absolute path, not "a"`}, {"path", "${NUSA_TASK_DIR}", ""},
		{"flag", true, ""}, {"flag", "true", "must be true or false"},
		{"whole", 9.0, ""}, {"whole", 9, ""}, {"whole", 10.0, "must be a whole number of 1 to 9"}, {"whole", 1.5, "must be a whole number of 1 to 9"},
		{"whole", "1", "must be a whole number of 1 to 9"}, {"whole", 0.0, "must be a whole number of 1 to 9"}, {"number", -1.5, ""}, {"number", "x", "must be a number"},
		{"list", []any{"a", ""}, ""}, {"list", []any{"a", 1.0}, "[1]: must be text: write it in quotes"}, {"list", "a", "must be a list of text"},
		{"list", make([]any, maxList+1), "1025 entries, the limit is 1024"},
		{"list", []any{strings.Repeat("x", maxArgument+1)}, "[0]: 131072 bytes, at most 131071: Linux starts no process with more; put the text into a file with templates"},
		{"texts", m{"a.b": "c"}, ""}, {"texts", m{"a": 1.0}, `["a"]: must be text: write it in quotes`}, {"texts", []any{}, "must be a mapping"},
		{"scalars", m{"a": 1.0, "b": false, "c": "x"}, ""}, {"scalars", m{"a": []any{}}, `["a"]: must be text, a number, true or false`},
		{"map", m{"a": []any{}}, ""}, {"map", "x", "must be a mapping"}, {"any", []any{m{}}, ""},
		{"tetx", "x", `unknown field, did you mean "text"?`},
		{"zzzzzzz", "x", "unknown field, known here are text, word, secret, path, flag, whole, number, list, texts, scalars, map, any"},
	} {
		config := m{"text": "x"}
		config[c.name] = c.v
		var got []string
		form.Check(config, Submitted, func(at, text string) {
			got = append(got, strings.TrimPrefix(strings.TrimPrefix(at+": "+text, "."+c.name), ": "))
		})
		if text := strings.Join(got, "; "); text != c.want {
			t.Errorf("%s: %v: %q, want %q", c.name, c.v, text, c.want)
		}
	}
	if err := form.Error(m{}, Submitted); fmt.Sprint(err) != "config.text: is missing: what it is" {
		t.Errorf("without a text: %v", err)
	}
}

// TestVariables: a text with a variable is checked once the variable has its value.
func TestVariables(t *testing.T) {
	config := map[string]any{"image": "x", "network": "${NUSA_JOB}"}
	if err := Docker.Error(config, Submitted); err != nil {
		t.Errorf("submitted: %v", err)
	}
	config["network"] = "mine"
	if _, err := Docker.Read(config); err == nil || !strings.HasPrefix(err.Error(), "config.network: must be one of bridge") {
		t.Errorf("filled: %v", err)
	}
}

func TestCheckSchema(t *testing.T) {
	many := make(Schema, MaxFields+1)
	for name, c := range map[string]struct {
		form Schema
		want string
	}{
		"good":         {Schema{{Name: "a1_b", Kind: Integer, Min: -1, Max: 3, Help: "x"}}, ""},
		"names":        {Schema{{Name: "A"}}, `"A" is not a name`},
		"empty":        {Schema{{}}, `"" is not a name`},
		"long":         {Schema{{Name: strings.Repeat("a", 64)}}, "is not a name"},
		"twice":        {Schema{{Name: "a"}, {Name: "a"}}, "a occurs twice"},
		"many":         {many, "there are 65 fields, at most 64"},
		"values":       {Schema{{Name: "a", Kind: Text, Values: make([]string, MaxValues+1)}}, "a: there are 33 values"},
		"no value":     {Schema{{Name: "a", Kind: Text, Values: []string{""}}}, "a: a value has 0 bytes"},
		"other values": {Schema{{Name: "a", Kind: Bool, Values: []string{"x"}}}, "a: only a text has values"},
		"other path":   {Schema{{Name: "a", Kind: Bool, Absolute: true}}, "a: only a text is a path"},
		"bounds":       {Schema{{Name: "a", Kind: Number, Min: 2, Max: 1}}, "a: the least value is above"},
		"other bounds": {Schema{{Name: "a", Kind: Text, Max: 1}}, "a: only a number"},
		"help":         {Schema{{Name: "a", Help: strings.Repeat("x", MaxHelp+1)}}, "a: the help has 129 bytes"},
	} {
		err := CheckSchema(c.form)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for _, driver := range []string{"process", "docker", "incus", "reserve"} {
		form, ok := Of(driver)
		if err := CheckSchema(form); !ok || err != nil {
			t.Errorf("%s: %v %v", driver, ok, err)
		}
	}
}
