package roster

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nusa-scheduler/nusa/security/identity"
)

// Bounds of a roster. Names, labels and texts have the bounds of an agent's own.
const (
	MaxNodes       = 100_000
	MaxFile        = 32 << 20 // bytes
	maxLabels      = 64
	maxKey         = 63
	maxValue       = 253
	maxDescription = 256
	maxPriority    = 100
	maxProblems    = 20 // in one error
)

// defaultPriority is the priority of a node whose row names none.
const defaultPriority = 50

// ErrNodes is wrapped by every error of Parse and Add.
var ErrNodes = errors.New("no node is registered")

// Node is a node that is registered before its agent first joins.
type Node struct {
	Name    string
	Address netip.Addr // the zero address is every address
	Pool    string     // or empty
	Labels  map[string]string
	// Description is for people.
	Description string
	Priority    int
}

// Equal reports whether two nodes have the same values.
func (n Node) Equal(m Node) bool {
	return n.Name == m.Name && n.Address == m.Address && n.Pool == m.Pool && n.Description == m.Description && n.Priority == m.Priority && maps.Equal(n.Labels, m.Labels)
}

// columns reads one field of a row into a node, for each name of a column.
var columns = map[string]func(*Node, string) error{
	"name":        (*Node).setName,
	"address":     (*Node).setAddress,
	"pool":        (*Node).setPool,
	"labels":      (*Node).setLabels,
	"description": (*Node).setDescription,
	"priority":    (*Node).setPriority,
}

const columnNames = "name, address, pool, labels, description, priority"

// Parse reads a CSV file whose first line names the columns. Only the column name is
// necessary. Labels are written "key=value;key=value". Lines that begin with # are comments. The
// error lists what is wrong, with the numbers of the lines, and there are no nodes then.
func Parse(text []byte) ([]Node, error) {
	switch {
	case len(text) > MaxFile:
		return nil, fmt.Errorf("%w: the file has %d bytes, at most %d: split the file", ErrNodes, len(text), MaxFile)
	case !utf8.Valid(text):
		return nil, fmt.Errorf("%w: the file is not UTF-8: save it as UTF-8", ErrNodes)
	}
	in := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(text, []byte("\ufeff"))))
	in.Comment, in.TrimLeadingSpace = '#', true
	head, err := in.Read()
	if err != nil {
		return nil, fmt.Errorf("%w: the first line must name the columns (%s): %w", ErrNodes, columnNames, err)
	}
	if err := checkHead(head); err != nil {
		line, _ := in.FieldPos(0)
		return nil, fmt.Errorf("%w: line %d: %w", ErrNodes, line, err)
	}
	var out []Node
	var bad problems
	lines := map[string]int{}
	for {
		row, err := in.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			bad.add(err) // names the line
			break
		}
		line, _ := in.FieldPos(0)
		node, err := parseRow(head, row)
		first, twice := lines[node.Name]
		switch {
		case err != nil:
			bad.add(fmt.Errorf("line %d: %w", line, err))
			continue
		case twice:
			bad.add(fmt.Errorf("line %d: node %s is in line %d, too: keep one of them", line, node.Name, first))
			continue
		case len(out) == MaxNodes:
			return nil, fmt.Errorf("%w: line %d: more than %d nodes: split the file", ErrNodes, line, MaxNodes)
		}
		lines[node.Name] = line
		out = append(out, node)
	}
	if err := bad.err(); err != nil {
		return nil, err
	}
	return out, nil
}

func checkHead(head []string) error {
	seen := map[string]bool{}
	for i, column := range head {
		head[i] = strings.ToLower(strings.TrimSpace(column))
		switch {
		case columns[head[i]] == nil:
			return fmt.Errorf("column %.40q does not exist: use %s", column, columnNames)
		case seen[head[i]]:
			return fmt.Errorf("column %s is there twice", head[i])
		}
		seen[head[i]] = true
	}
	if !seen["name"] {
		return fmt.Errorf("there is no column name: the columns are %s", columnNames)
	}
	return nil
}

func parseRow(head, row []string) (Node, error) {
	n := Node{Priority: defaultPriority}
	for i, field := range row {
		if err := columns[head[i]](&n, strings.TrimSpace(field)); err != nil {
			return Node{}, fmt.Errorf("%s: %w", head[i], err)
		}
	}
	return n, nil
}

func (n *Node) setName(s string) error {
	if !identity.ValidName(s) || len(s) > maxKey {
		return fmt.Errorf("%.80q is not a name of a node: use 1 to %d letters, digits and . _ -, starting with a letter or a digit", s, maxKey)
	}
	n.Name = s
	return nil
}

func (n *Node) setAddress(s string) error {
	if s == "" {
		return nil
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" || a.IsUnspecified() {
		return fmt.Errorf("%.80q is not an IP address", s)
	}
	n.Address = a.Unmap()
	return nil
}

func (n *Node) setPool(s string) error {
	if s != "" && !identity.ValidRegion(s) {
		return fmt.Errorf("%.80q is not a name of a pool: use 1 to 63 of a-z, 0-9 and -, starting with a letter", s)
	}
	n.Pool = s
	return nil
}

func (n *Node) setLabels(s string) error {
	if s == "" {
		return nil
	}
	n.Labels = map[string]string{}
	for pair := range strings.SplitSeq(s, ";") {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		_, twice := n.Labels[key]
		switch {
		case !ok || !validLabel(key, value):
			return fmt.Errorf("%.80q is not key=value with 1 to %d and at most %d bytes", pair, maxKey, maxValue)
		case twice:
			return fmt.Errorf("label %q is there twice", key)
		case len(n.Labels) == maxLabels:
			return fmt.Errorf("more than %d labels", maxLabels)
		}
		n.Labels[key] = value
	}
	return nil
}

func (n *Node) setDescription(s string) error {
	if !shown(s, maxDescription) {
		return fmt.Errorf("%.40q has more than %d bytes, or signs that cannot be shown", s, maxDescription)
	}
	n.Description = s
	return nil
}

func (n *Node) setPriority(s string) error {
	if s == "" {
		return nil
	}
	p, err := strconv.Atoi(s)
	if err != nil || p < 0 || p > maxPriority {
		return fmt.Errorf("%.40q is not a number from 0 to %d", s, maxPriority)
	}
	n.Priority = p
	return nil
}

// shown reports whether a text is short enough, and can be shown in one line.
func shown(s string, most int) bool {
	return len(s) <= most && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// Roster has the registered nodes of a region by their names.
type Roster map[string]Node

// Add returns a roster with more nodes, and never changes r. A node that is registered
// already with other values is refused, and no node is added then.
func (r Roster) Add(nodes []Node) (Roster, error) {
	out := maps.Clone(r)
	if out == nil {
		out = Roster{}
	}
	var bad problems
	for _, n := range nodes {
		if old, ok := out[n.Name]; ok && !old.Equal(n) {
			bad.add(fmt.Errorf("node %s is registered with other values: change them with --replace", n.Name))
			continue
		}
		out[n.Name] = n
	}
	if len(out) > MaxNodes {
		bad.add(fmt.Errorf("%d nodes, at most %d", len(out), MaxNodes))
	}
	if err := bad.err(); err != nil {
		return r, err
	}
	return out, nil
}

// problems keeps the first errors that it gets.
type problems struct {
	first []error
	more  int
}

func (p *problems) add(err error) {
	if len(p.first) == maxProblems {
		p.more++
		return
	}
	p.first = append(p.first, err)
}

func (p *problems) err() error {
	if len(p.first) == 0 {
		return nil
	}
	list := p.first
	if p.more > 0 {
		list = append(list, fmt.Errorf("and %d more", p.more))
	}
	return fmt.Errorf("%w:\n%w", ErrNodes, errors.Join(list...))
}
