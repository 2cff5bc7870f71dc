package gate

import "strings"

// Row describes what a method needs, for tests: "VERB KIND", "free" for what every operator may
// call, or "members". own: the method has a row of its own. reads reads the place of a request.
func Row(method string) (needs string, own bool, reads func(req any) (known bool)) {
	r := rowOf(method)
	if r == nil {
		return "", false, nil
	}
	own = !strings.HasSuffix(r.name, "/")
	if r.verb == "" {
		return "", own, nil
	}
	needs = r.verb + " " + r.kind
	if r.or != "" {
		needs += " or " + r.or
	}
	if r.list {
		needs += ", a list"
	}
	return needs, own, func(req any) bool {
		_, known := r.at(req)
		return known
	}
}

// FindsItself reports whether the handler of a method may have to find the object.
func FindsItself(method string) bool {
	_, known := rowOf(method).at(nil)
	return !known
}
