package cli

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job/doc"
)

// Print prints a message in the format of -o. show writes the format for people.
func (c *Session) Print(m proto.Message, show func(w *term.Screen)) error {
	switch c.Output {
	case "table":
		show(c.Screen())
		return nil
	case "name":
		return printNames(c, m)
	}
	n, err := MessageTree(m)
	if err != nil {
		return err
	}
	return c.PrintTree(n)
}

// PrintAs prints a message like Print. -o name prints this name.
func (c *Session) PrintAs(name string, m proto.Message, show func(w *term.Screen)) error {
	if c.Output == "name" {
		c.Printf("%s\n", name)
		return nil
	}
	return c.Print(m, show)
}

// PrintTree prints a document as JSON or YAML.
func (c *Session) PrintTree(n *doc.Node) error {
	if c.Output == "name" {
		return errNoNames
	}
	text := n.JSON()
	if c.Output == "yaml" {
		text = n.YAML()
	}
	_, err := c.Out.Write(text)
	return err
}

// PrintLine prints one message of a stream, like Print. In JSON the message takes one line,
// and in YAML it is a document of its own.
func (c *Session) PrintLine(m proto.Message, show func(w *term.Screen)) error {
	switch c.Output {
	case "json":
		n, err := MessageTree(m)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.Out, "%s\n", n.Compact())
		return err
	case "yaml":
		c.Printf("---\n")
	}
	return c.Print(m, show)
}

// MessageTree converts a message to a document tree. It parses the output of protojson
// again, because protojson deliberately writes different blanks in different builds.
func MessageTree(m proto.Message) (*doc.Node, error) {
	data, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	docs, err := doc.Read(data, true)
	if err != nil {
		return nil, err
	}
	return docs[0], nil
}

// Screen returns the command's output for people, with the present time.
func (c *Session) Screen() *term.Screen {
	w := &term.Screen{Writer: c.Out, Palette: c.Style, Now: time.Now(), Program: c.Program}
	if c.Terminal {
		w.Width = term.TerminalWidth(c.Out)
	}
	return w
}
