package roster

import "fmt"

// Check returns an error if a node that does not come from Parse is not one that Parse could return.
func (n Node) Check() error {
	var to Node
	address := ""
	if n.Address.IsValid() {
		address = n.Address.String()
	}
	for _, f := range []struct {
		column, text string
	}{{"name", n.Name}, {"address", address}, {"pool", n.Pool}, {"description", n.Description}, {"priority", fmt.Sprint(n.Priority)}} {
		if err := columns[f.column](&to, f.text); err != nil {
			return fmt.Errorf("%w: node %.80q: %s: %w", ErrNodes, n.Name, f.column, err)
		}
	}
	if len(n.Labels) > maxLabels {
		return fmt.Errorf("%w: node %s: labels: more than %d", ErrNodes, n.Name, maxLabels)
	}
	for key, value := range n.Labels {
		if !validLabel(key, value) {
			return fmt.Errorf("%w: node %s: labels: %.80q is not key=value with 1 to %d and at most %d bytes", ErrNodes, n.Name, key+"="+value, maxKey, maxValue)
		}
	}
	return nil
}

// validLabel reports whether a label is short enough, and can be shown in one line.
func validLabel(key, value string) bool {
	return key != "" && shown(key, maxKey) && shown(value, maxValue)
}
