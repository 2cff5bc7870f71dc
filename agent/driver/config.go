package driver

import (
	"errors"
	"fmt"
	"strings"
)

// ConfigText reads a string of a task's Config.
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

// ConfigTexts reads a list of strings of a task's Config. The result is never nil.
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
