package steps

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// End is how a step ended.
type End uint8

// The ends of a step. None: it has not ended.
const (
	None End = iota
	Succeeded
	Failed
	Skipped
	Lost
	TimedOut
	// Canceled: the run was canceled. No condition names it.
	Canceled
)

var endNames = [...]string{"none", "succeeded", "failed", "skipped", "lost", "timed_out", "canceled"}

// String returns, for example, "timed_out".
func (e End) String() string { return endNames[e] }

// Bad reports whether a step with this end has failed.
func (e End) Bad() bool { return e == Failed || e == Lost || e == TimedOut }

// set is a set of ends.
type set uint8

func setOf(ends ...End) (s set) {
	for _, e := range ends {
		s |= 1 << e
	}
	return s
}

func (s set) has(e End) bool { return s&(1<<e) != 0 }

// String lists the ends, for example "succeeded or failed".
func (s set) String() string {
	var out []string
	for e := Succeeded; e <= TimedOut; e++ {
		if s.has(e) {
			out = append(out, e.String())
		}
	}
	return strings.Join(out, " or ")
}

// Value is the value of a condition.
type Value uint8

// The values of a condition. Open: it depends on steps that have not ended.
const (
	Open Value = iota
	True
	False
)

// Condition is an expression in CEL over the ends of steps. It consists of `step.end`, true, false, &&, ||, !
// and parentheses.
type Condition struct {
	op   op
	step string
	at   int // index of the step, once the graph is made
	end  End
	kids []*Condition
}

type op uint8

const (
	opIs op = iota
	opConstant
	opNot
	opAnd
	opOr
)

// Bounds of a condition.
const (
	// MaxSource is the longest source, in bytes.
	MaxSource = 4096
	maxDepth  = 64
)

// Parse reads a condition. Empty means true.
func Parse(source string) (*Condition, error) {
	if len(source) > MaxSource {
		return nil, fmt.Errorf("%d bytes long, the limit is %d", len(source), MaxSource)
	}
	if strings.TrimSpace(source) == "" {
		return &Condition{op: opConstant, end: Succeeded}, nil
	}
	p := &parser{text: source}
	c, err := p.either(0)
	if err == nil && p.peek() != "" {
		err = fmt.Errorf("%q is not expected", p.peek())
	}
	if err != nil {
		return nil, fmt.Errorf("at column %d: %w", p.column(), err)
	}
	return c, nil
}

// parser reads tokens: names, &&, ||, !, (, ) and the dot.
type parser struct {
	text string
	at   int
}

func word(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

func (p *parser) skip() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *parser) column() int {
	p.skip()
	return p.at + 1
}

// peek returns the next token, or "" at the end.
func (p *parser) peek() string {
	p.skip()
	rest := p.text[p.at:]
	switch {
	case rest == "":
		return ""
	case strings.HasPrefix(rest, "&&"), strings.HasPrefix(rest, "||"):
		return rest[:2]
	case !word(rest[0]):
		_, n := utf8.DecodeRuneInString(rest)
		return rest[:n]
	}
	n := 0
	for n < len(rest) && word(rest[n]) {
		n++
	}
	return rest[:n]
}

func (p *parser) take(token string) bool {
	if p.peek() != token {
		return false
	}
	p.at += len(token)
	return true
}

func (p *parser) either(depth int) (*Condition, error) { return p.list(depth, "||", opOr, p.all) }

func (p *parser) all(depth int) (*Condition, error) { return p.list(depth, "&&", opAnd, p.one) }

func (p *parser) list(depth int, sign string, op op, part func(int) (*Condition, error)) (*Condition, error) {
	first, err := part(depth)
	if err != nil || p.peek() != sign {
		return first, err
	}
	out := &Condition{op: op, kids: []*Condition{first}}
	for p.take(sign) {
		next, err := part(depth)
		if err != nil {
			return nil, err
		}
		out.kids = append(out.kids, next)
	}
	return out, nil
}

var errEnds = errors.New("the expression ends too early")

func (p *parser) one(depth int) (*Condition, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d nested parts", maxDepth)
	}
	switch token := p.peek(); {
	case token == "":
		return nil, errEnds
	case p.take("!"):
		c, err := p.one(depth + 1)
		return &Condition{op: opNot, kids: []*Condition{c}}, err
	case p.take("("):
		c, err := p.either(depth + 1)
		if err == nil && !p.take(")") {
			err = errors.New("a ) is missing")
		}
		return c, err
	case !word(token[0]):
		return nil, fmt.Errorf("%q is not expected: write, for example, fetch.succeeded && !test.failed", token)
	case token == "true" && p.take(token):
		return &Condition{op: opConstant, end: Succeeded}, nil
	case token == "false" && p.take(token):
		return &Condition{op: opConstant}, nil
	}
	return p.end()
}

// end reads step.end.
func (p *parser) end() (*Condition, error) {
	step := p.peek()
	p.at += len(step)
	if !p.take(".") {
		return nil, fmt.Errorf("write how %s ends: %s.succeeded, or failed, skipped, lost, timed_out", step, step)
	}
	name := p.peek()
	i := slices.Index(endNames[:], name)
	if i < int(Succeeded) || i > int(TimedOut) {
		return nil, fmt.Errorf("%s.%s is no end: the ends are succeeded, failed, skipped, lost, timed_out", step, name)
	}
	p.at += len(name)
	return &Condition{step: step, end: End(i)}, nil
}

// Steps returns the names of the steps in a condition, sorted, each once.
func (c *Condition) Steps() []string {
	var out []string
	c.each(func(c *Condition) { out = append(out, c.step) })
	slices.Sort(out)
	return slices.Compact(out)
}

// each calls visit for each part of the form step.end.
func (c *Condition) each(visit func(*Condition)) {
	if c.op == opIs {
		visit(c)
	}
	for _, kid := range c.kids {
		kid.each(visit)
	}
}

// Eval returns the value of a condition. end returns how a step ended, by its index. A condition that is true
// or false stays so, because ends do not change.
func (c *Condition) Eval(end func(int) End) Value {
	switch c.op {
	case opIs:
		switch e := end(c.at); e {
		case None:
			return Open
		case c.end:
			return True
		default:
			return False
		}
	case opConstant:
		return is(c.end == Succeeded)
	case opNot:
		return [...]Value{Open: Open, True: False, False: True}[c.kids[0].Eval(end)]
	}
	decides := is(c.op == opOr)
	out := is(c.op == opAnd)
	for _, kid := range c.kids {
		switch v := kid.Eval(end); v {
		case decides:
			return v
		case Open:
			out = Open
		}
	}
	return out
}

func is(b bool) Value {
	if b {
		return True
	}
	return False
}
