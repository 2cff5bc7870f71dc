package doc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

type jsonReader struct {
	data  []byte
	dec   *json.Decoder
	nodes int
	// line and column are the position of offset in the text. The position only moves
	// forward.
	offset, line, column int
}

func readJSON(data []byte) (*Node, error) {
	r := &jsonReader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1, column: 1}
	r.dec.UseNumber()
	n, err := r.value(0)
	if err != nil {
		return nil, r.wrap(err)
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		r.start()
		return nil, &Error{r.line, r.column, "text after the end of the JSON value"}
	}
	return n, nil
}

// start moves the position to the first byte of the next token.
func (r *jsonReader) start() {
	to := int(r.dec.InputOffset())
	for to < len(r.data) && strings.IndexByte(" \t\r\n,:", r.data[to]) >= 0 {
		to++
	}
	r.moveTo(to)
}

func (r *jsonReader) moveTo(to int) {
	for ; r.offset < to && r.offset < len(r.data); r.offset++ {
		switch c := r.data[r.offset]; {
		case c == '\n':
			r.line, r.column = r.line+1, 1
		case c&0xC0 != 0x80: // the first byte of a character
			r.column++
		}
	}
}

func (r *jsonReader) wrap(err error) error {
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		r.moveTo(max(int(syntax.Offset)-1, 0))
	} else {
		r.moveTo(len(r.data))
	}
	message := err.Error()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		message = "the JSON ends too early"
	}
	return &Error{r.line, r.column, oneLine(message)}
}

func (r *jsonReader) value(depth int) (*Node, error) {
	r.start()
	n := &Node{Line: r.line, Column: r.column}
	if r.nodes++; r.nodes > maxNodes {
		return nil, &Error{r.line, r.column, fmt.Sprintf("more than %d values", maxNodes)}
	}
	if depth > maxDepth {
		return nil, &Error{r.line, r.column, fmt.Sprintf("nested deeper than %d", maxDepth)}
	}
	token, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case nil:
	case bool:
		n.Kind, n.Text = Bool, fmt.Sprint(t)
	case json.Number:
		n.Kind, n.Text = Number, t.String()
	case string:
		n.Kind, n.Text = String, t
	case json.Delim:
		if t == '{' {
			return n.measure(), r.object(n, depth)
		}
		n.Kind = List
		for r.dec.More() {
			item, err := r.value(depth + 1)
			if err != nil {
				return nil, err
			}
			n.Items = append(n.Items, item)
		}
		if _, err := r.dec.Token(); err != nil {
			return nil, err
		}
	}
	return n.measure(), nil
}

func (r *jsonReader) object(n *Node, depth int) error {
	n.Kind = Map
	seen := map[string]bool{}
	for r.dec.More() {
		r.start()
		e := Entry{Line: r.line, Column: r.column}
		token, err := r.dec.Token()
		if err != nil {
			return err
		}
		e.Key = token.(string) // the decoder allows nothing else
		if seen[e.Key] {
			return &Error{e.Line, e.Column, fmt.Sprintf("key %q is given twice", e.Key)}
		}
		seen[e.Key] = true
		if e.Value, err = r.value(depth + 1); err != nil {
			return err
		}
		n.Entries = append(n.Entries, e)
	}
	_, err := r.dec.Token()
	return err
}
