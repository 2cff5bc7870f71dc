package doc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// Kind is the kind of a node.
type Kind int

const (
	Null Kind = iota
	Bool
	Number
	String
	List
	Map
)

// String names the kind for the author of a file, for example "a number".
func (k Kind) String() string {
	return [...]string{"empty", "true or false", "a number", "text", "a list", "a mapping"}[k]
}

// Node is a value and its position. A tree must not be changed, because the value of a
// YAML anchor can occur in it several times.
type Node struct {
	Kind Kind
	// Line and Column count from 1. They are 0 if the tree was not read from a file.
	Line, Column int
	// Text is the value of a String. For a Number or a Bool it is the text in the file,
	// for example "0.5" or "true".
	Text string
	// Items holds the items of a List.
	Items []*Node
	// Entries holds the entries of a Map in the order of the file. Keys are unique.
	Entries []Entry

	size int // the number of nodes in this tree; an aliased tree counts each time
}

// Entry is one key of a Map.
type Entry struct {
	Key          string
	Line, Column int
	Value        *Node
}

// Get returns the value of a key; nil if the Map does not have the key.
func (n *Node) Get(key string) *Node {
	for _, e := range n.Entries {
		if e.Key == key {
			return e.Value
		}
	}
	return nil
}

// Add appends an entry to a Map. It is for trees that a program makes.
func (n *Node) Add(key string, value *Node) {
	n.Entries = append(n.Entries, Entry{Key: key, Value: value})
}

// Error says why a file is not readable, and at which position.
type Error struct {
	Line, Column int
	Message      string
}

func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message) }

// Bounds of a file. They refuse small files that would be expensive to read.
const (
	maxDepth  = 64
	maxTokens = 100_000
	maxNodes  = 100_000
	// maxBytes bounds the bytes of all texts, with the anchors filled in, and of the paths of all
	// values. A decoder has both in memory.
	maxBytes = 16 << 20
)

// Read reads every document of a YAML stream, or one JSON value. If jsonOnly is true, the
// file must be JSON; otherwise Read detects the format. The error is an *Error.
func Read(data []byte, jsonOnly bool) ([]*Node, error) {
	if other := otherEncoding(data); other != "" {
		return nil, &Error{Line: 1, Column: 1, Message: "the file is in " + other + ": convert it to UTF-8, such as with iconv -f " + other + " -t UTF-8"}
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	var all []*Node
	if jsonOnly || looksLikeJSON(data) {
		n, err := readJSON(data)
		if err != nil {
			return nil, err
		}
		all = []*Node{n}
	} else {
		var err error
		if all, err = readYAML(data); err != nil {
			return nil, err
		}
	}
	left := maxBytes
	for _, n := range all {
		if n.take(0, &left); left < 0 {
			return nil, &Error{n.Line, n.Column, fmt.Sprintf("the values and the names around each of them take more than %d MiB, with the anchors filled in", maxBytes>>20)}
		}
	}
	return all, nil
}

// index is about the length of an index in a path.
const index = len("[100]")

// take takes the bytes of a tree from left, until left is negative. path is the length of the tree's path.
func (n *Node) take(path int, left *int) {
	*left -= path + len(n.Text)
	for i := 0; i < len(n.Items) && *left >= 0; i++ {
		n.Items[i].take(path+index, left)
	}
	for i := 0; i < len(n.Entries) && *left >= 0; i++ {
		n.Entries[i].Value.take(path+len(".")+len(n.Entries[i].Key), left)
	}
}

// otherEncoding returns the name of a text's encoding if that is not UTF-8, and otherwise
// "". It recognises byte order marks, and the zero bytes that ASCII characters have in
// UTF-16.
func otherEncoding(data []byte) string {
	begin := string(data[:min(len(data), 4)])
	switch {
	case begin == "\xff\xfe\x00\x00", begin == "\x00\x00\xfe\xff":
		return "UTF-32"
	case strings.HasPrefix(begin, "\xff\xfe"), strings.HasPrefix(begin, "\xfe\xff"):
		return "UTF-16"
	case len(begin) > 1 && begin[0] == 0 && begin[1] != 0:
		return "UTF-16BE"
	case len(begin) > 1 && begin[0] != 0 && begin[1] == 0:
		return "UTF-16LE"
	}
	return ""
}

// looksLikeJSON reports whether data is JSON. YAML includes almost all of JSON, but its
// reader refuses tabs and some escapes.
func looksLikeJSON(data []byte) bool {
	t := bytes.TrimLeft(data, " \t\r\n")
	return len(t) > 0 && (t[0] == '{' || t[0] == '[') && json.Valid(data)
}

func (n *Node) measure() *Node {
	n.size = 1
	for _, i := range n.Items {
		n.size += i.size
	}
	for _, e := range n.Entries {
		n.size += e.Value.size
	}
	return n
}

// oneLine returns the first line of a library's error message.
func oneLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return strings.ReplaceAll(strings.TrimSpace(s), "\t", `\t`)
}
