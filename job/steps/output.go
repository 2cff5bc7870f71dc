package steps

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Output names the output of a step, or with Key a value of the JSON object in it.
type Output struct{ Step, Key string }

// String returns, for example, "fetch.files".
func (o Output) String() string {
	if o.Key == "" {
		return o.Step
	}
	return o.Step + "." + o.Key
}

const outputOpens = "${steps."

var (
	outputName = regexp.MustCompile(`^([a-z0-9_]+)(?:\.([a-zA-Z0-9_-]{1,63}))?$`)
	reference  = regexp.MustCompile(`^([a-z0-9_]+)\.output(?:\.([a-zA-Z0-9_-]{1,63}))?$`)
)

// ParseOutput reads NAME or NAME.KEY.
func ParseOutput(text string) (Output, error) {
	m := outputName.FindStringSubmatch(text)
	if m == nil {
		return Output{}, errors.New("is neither the name of a step nor NAME.KEY")
	}
	return Output{m[1], m[2]}, nil
}

// Expand replaces each ${steps.NAME.output} and ${steps.NAME.output.KEY} of a text by what value returns.
func Expand(text string, value func(Output) (string, error)) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, outputOpens)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		m := reference.FindStringSubmatch(name)
		if !closed || m == nil {
			return "", fmt.Errorf("%s%s is not expected: write ${steps.NAME.output} or ${steps.NAME.output.KEY}", outputOpens, rest[:min(len(rest), 32)])
		}
		v, err := value(Output{m[1], m[2]})
		if err != nil {
			return "", err
		}
		b.WriteString(v)
		text = after
	}
}

// Outputs returns which outputs a text names, in its order.
func Outputs(text string) (out []Output, err error) {
	_, err = Expand(text, func(o Output) (string, error) {
		out = append(out, o)
		return "", nil
	})
	return out, err
}

// Pick returns an output, or with a key the value of the JSON object in it: a text as it is, and any other
// value as JSON.
func Pick(output, key string) (string, error) {
	if key == "" {
		return output, nil
	}
	var object map[string]json.RawMessage
	if json.Unmarshal([]byte(output), &object) != nil || object == nil {
		return "", fmt.Errorf("is no JSON object, so it has no key %s", key)
	}
	raw, has := object[key]
	if !has {
		return "", fmt.Errorf("has no key %s", key)
	}
	return textOf(raw), nil
}

func textOf(raw json.RawMessage) (text string) {
	if json.Unmarshal(raw, &text) == nil && raw[0] == '"' {
		return text
	}
	return string(raw)
}

// List reads a JSON list of at most so many values.
func List(text string, most int) ([]string, error) {
	var raw []json.RawMessage
	if json.Unmarshal([]byte(text), &raw) != nil || raw == nil {
		return nil, errors.New(`is no JSON list, such as ["eu", "us"]`)
	}
	if len(raw) > most {
		return nil, fmt.Errorf("has %d items, at most %d are allowed", len(raw), most)
	}
	out := make([]string, len(raw))
	for i, v := range raw {
		out[i] = textOf(v)
	}
	return out, nil
}
