package driver

import (
	"errors"
	"fmt"
	"strings"
)

// ConfigText checks that a value of Task.Config is a string, and returns it.
func ConfigText(v any) (string, error) {
	s, ok := v.(string)
	if !ok {
		return "", errors.New("must be a text")
	}
	if strings.ContainsRune(s, 0) {
		return "", errors.New("must not contain a zero byte")
	}
	return s, nil
}

// ConfigTexts checks that a value of Task.Config is a list of strings. Without an error the
// result is never nil.
func ConfigTexts(v any) ([]string, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, errors.New("must be a list of texts")
	}
	out := make([]string, 0, len(list))
	for i, item := range list {
		s, err := ConfigText(item)
		if err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		out = append(out, s)
	}
	return out, nil
}
