package doc

import (
	"errors"
	"fmt"

	yaml "github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
)

// readYAML reads a stream of documents. Empty documents are left out.
func readYAML(data []byte) (docs []*Node, err error) {
	// The YAML library may panic on malformed input, which comes from a user. Such a panic
	// must become an error about the file and not end this process.
	defer func() {
		if r := recover(); r != nil {
			docs, err = nil, &Error{1, 1, fmt.Sprintf("not readable as YAML: %.80v", r)}
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if err := checkTokens(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, yamlError(err)
	}
	for _, d := range file.Docs {
		if d.Body == nil || d.Body.Type() == ast.CommentType {
			continue
		}
		r := yamlReader{anchors: map[string]*Node{}}
		n, err := r.node(d.Body, 0)
		if err != nil {
			return nil, err
		}
		docs = append(docs, n)
	}
	return docs, nil
}

// checkTokens bounds the number of tokens and their nesting. The parser is recursive, so
// this check must come first.
func checkTokens(tokens token.Tokens) error {
	if len(tokens) > maxTokens {
		p := tokens[maxTokens].Position
		return &Error{p.Line, p.Column, fmt.Sprintf("more than %d words", maxTokens)}
	}
	flow, inLine, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, inLine = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow--
		case token.SequenceEntryType, token.MappingKeyType, token.AnchorType, token.TagType:
			inLine++
		}
		if flow > maxDepth || inLine > maxDepth {
			return &Error{t.Position.Line, t.Position.Column, fmt.Sprintf("nested deeper than %d", maxDepth)}
		}
	}
	return nil
}

func yamlError(err error) error {
	var y yaml.Error
	if errors.As(err, &y) {
		e := &Error{1, 1, oneLine(y.GetMessage())}
		if t := y.GetToken(); t != nil && t.Position != nil {
			e.Line, e.Column = t.Position.Line, t.Position.Column
		}
		return e
	}
	return &Error{1, 1, oneLine(err.Error())}
}

// yamlReader converts the syntax tree of one document to a tree of Nodes.
type yamlReader struct {
	anchors map[string]*Node
	nodes   int
}

func fail(n ast.Node, format string, args ...any) error {
	e := &Error{1, 1, fmt.Sprintf(format, args...)}
	if t := n.GetToken(); t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	return e
}

var (
	// integer matches a decimal integer of YAML's core schema. The library converts other
	// integers ("0x1F", "1_000", "017").
	integer = lazyregexp.New(`^-?(0|[1-9][0-9]*)$`)
	// float matches a number with an exponent as in JSON. The library reads such a number
	// ("1e-7") as text.
	float = lazyregexp.New(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?[eE][+-]?[0-9]+$`)
)

func (r *yamlReader) node(n ast.Node, depth int) (*Node, error) {
	if depth > maxDepth {
		return nil, fail(n, "nested deeper than %d", maxDepth)
	}
	if r.nodes++; r.nodes > maxNodes {
		return nil, fail(n, "more than %d values", maxNodes)
	}
	out := &Node{}
	if t := n.GetToken(); t != nil && t.Position != nil {
		out.Line, out.Column = t.Position.Line, t.Position.Column
	}
	switch n := n.(type) {
	case *ast.NullNode:
	case *ast.BoolNode:
		out.Kind, out.Text = Bool, fmt.Sprint(n.Value)
	case *ast.IntegerNode:
		out.Kind, out.Text = Number, n.Token.Value
		if !integer().MatchString(out.Text) {
			out.Text = fmt.Sprint(n.Value)
		}
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		out.Kind, out.Text = Number, n.GetToken().Value
	case *ast.StringNode:
		out.Kind, out.Text = String, n.Value
		if n.Token.Type == token.StringType && float().MatchString(n.Value) {
			out.Kind = Number
		}
	case *ast.LiteralNode:
		out.Kind, out.Text = String, n.Value.Value
	case *ast.TagNode:
		return r.tagged(n, depth)
	case *ast.AnchorNode:
		v, err := r.node(n.Value, depth+1)
		if err == nil {
			r.anchors[n.Name.GetToken().Value] = v
		}
		return v, err
	case *ast.AliasNode:
		return r.alias(n)
	case *ast.SequenceNode:
		out.Kind = List
		for _, v := range n.Values {
			item, err := r.node(v, depth+1)
			if err != nil {
				return nil, err
			}
			out.Items = append(out.Items, item)
		}
	case *ast.MappingNode:
		return r.mapping(out, n.Values, depth)
	case *ast.MappingValueNode:
		return r.mapping(out, []*ast.MappingValueNode{n}, depth)
	default:
		return nil, fail(n, "%s is not supported here", n.Type())
	}
	return out.measure(), nil
}

func (r *yamlReader) alias(n *ast.AliasNode) (*Node, error) {
	name := n.Value.GetToken().Value
	target, ok := r.anchors[name]
	if !ok {
		return nil, fail(n, "no anchor &%s before this", name)
	}
	if r.nodes += target.size; r.nodes > maxNodes {
		return nil, fail(n, "more than %d values with the anchors filled in", maxNodes)
	}
	return target, nil
}

// tagged reads a value with the tag !!str, which converts any scalar to text. Other tags
// are refused.
func (r *yamlReader) tagged(n *ast.TagNode, depth int) (*Node, error) {
	if n.Start.Value != "!!str" || n.Value == nil {
		return nil, fail(n, "the tag %s is not known", n.Start.Value)
	}
	v, err := r.node(n.Value, depth+1)
	if err != nil {
		return nil, err
	}
	if v.Kind == List || v.Kind == Map {
		return nil, fail(n, "!!str is used for %s", v.Kind)
	}
	return &Node{Kind: String, Line: v.Line, Column: v.Column, Text: v.Text, size: 1}, nil
}

func (r *yamlReader) mapping(out *Node, values []*ast.MappingValueNode, depth int) (*Node, error) {
	out.Kind = Map
	seen := map[string]bool{}
	var merged []*Node
	for _, v := range values {
		value, err := r.node(v.Value, depth+1)
		if err != nil {
			return nil, err
		}
		if v.Key.IsMergeKey() {
			if merged, err = mergeable(merged, value, v); err != nil {
				return nil, err
			}
			continue
		}
		key, err := r.key(v.Key, depth)
		if err != nil {
			return nil, err
		}
		if seen[key.Text] {
			return nil, &Error{key.Line, key.Column, fmt.Sprintf("key %q is given twice", key.Text)}
		}
		seen[key.Text] = true
		out.Entries = append(out.Entries, Entry{key.Text, key.Line, key.Column, value})
	}
	for _, m := range merged {
		for _, e := range m.Entries {
			if !seen[e.Key] {
				seen[e.Key] = true
				out.Entries = append(out.Entries, e)
			}
		}
	}
	if len(out.Entries) > 0 && len(values) > 0 {
		out.Line, out.Column = out.Entries[0].Line, out.Entries[0].Column
	}
	return out.measure(), nil
}

// mergeable appends the mappings of the key "<<", whose value is a mapping or a list of
// mappings.
func mergeable(to []*Node, v *Node, at ast.Node) ([]*Node, error) {
	all := []*Node{v}
	if v.Kind == List {
		all = v.Items
	}
	for _, m := range all {
		if m.Kind != Map {
			return nil, fail(at, "<< merges mappings, not %s", m.Kind)
		}
	}
	return append(to, all...), nil
}

func (r *yamlReader) key(k ast.MapKeyNode, depth int) (*Node, error) {
	var n ast.Node = k
	if q, ok := n.(*ast.MappingKeyNode); ok {
		n = q.Value
	}
	if n == nil {
		return nil, fail(k, "a key is missing")
	}
	v, err := r.node(n, depth+1)
	if err != nil {
		return nil, err
	}
	if v.Kind == List || v.Kind == Map {
		return nil, fail(k, "a key must be text, not %s", v.Kind)
	}
	if v.Kind == Null {
		v.Text = n.GetToken().Value
	}
	return v, nil
}
