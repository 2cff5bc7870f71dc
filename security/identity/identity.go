package identity

import (
	"errors"
	"fmt"
	"strings"
)

// Kind says what an ID names.
type Kind uint8

// The kinds of IDs.
const (
	// None is the kind of the zero ID, which names nothing.
	None Kind = iota
	// Federation is the kind of the root certificate: spiffe://FEDERATION.
	Federation
	// Region is the kind of a region's certificate authority: …/region/REGION.
	Region
	// Global is a global server: …/global/NAME.
	Global
	// Server is a regional server: …/region/REGION/server/NAME.
	Server
	// Agent is the agent of a node: …/region/REGION/agent/NAME.
	Agent
	// Operator is a person or a program that uses the API: …/operator/NAME.
	Operator
)

// String returns the name of the kind for messages.
func (k Kind) String() string {
	switch k {
	case Federation:
		return "federation"
	case Region:
		return "region"
	case Global:
		return "global server"
	case Server:
		return "regional server"
	case Agent:
		return "agent"
	case Operator:
		return "operator"
	}
	return "nothing"
}

// Leaf reports whether an ID of this kind names an end of a connection, and not a
// certificate authority.
func (k Kind) Leaf() bool { return k == Global || k.Regional() || k == Operator }

// Regional reports whether the region's certificate authority may issue certificates of this
// kind.
func (k Kind) Regional() bool { return k == Server || k == Agent }

// Bounds of names, in bytes.
const (
	// maxText bounds the text of an ID.
	maxText = 255
	// maxLabel bounds a region's name, and each label of a federation's name.
	maxLabel = 63
)

// ErrID is wrapped by every error of Parse and Check.
var ErrID = errors.New("not an identity of Nusa")

const scheme = "spiffe://"

// ID names one member of a federation. Region is empty for the kinds Federation, Global and
// Operator. Name is empty for the kinds Federation and Region.
type ID struct {
	Federation string
	Kind       Kind
	Region     string
	Name       string
}

// String returns the SPIFFE ID. The text of the zero ID is empty.
func (id ID) String() string {
	if id.Kind == None {
		return ""
	}
	return scheme + id.Federation + id.path()
}

// path returns the part of the text after the federation.
func (id ID) path() string {
	switch id.Kind {
	case Region:
		return "/region/" + id.Region
	case Global:
		return "/global/" + id.Name
	case Server:
		return "/region/" + id.Region + "/server/" + id.Name
	case Agent:
		return "/region/" + id.Region + "/agent/" + id.Name
	case Operator:
		return "/operator/" + id.Name
	}
	return ""
}

// Describe returns the ID for people, for example "agent n1 of region jakarta".
func (id ID) Describe() string {
	switch {
	case id.Kind == None:
		return "nothing"
	case id.Kind == Federation:
		return "federation " + id.Federation
	case id.Kind == Region:
		return "the authority of region " + id.Region
	case id.Kind.Regional():
		return fmt.Sprintf("%s %s of region %s", id.Kind, id.Name, id.Region)
	}
	return id.Kind.String() + " " + id.Name
}

// Parse reads a SPIFFE ID. It accepts exactly the texts that String returns for an ID that
// Check accepts.
func Parse(text string) (ID, error) {
	if len(text) > maxText {
		return ID{}, fmt.Errorf("%w: %.40q… has %d bytes, at most %d", ErrID, text, len(text), maxText)
	}
	rest, ok := strings.CutPrefix(text, scheme)
	if !ok {
		return ID{}, fmt.Errorf("%w: %q does not begin with %s", ErrID, text, scheme)
	}
	federation, path, _ := strings.Cut(rest, "/")
	if len(federation) < len(rest) && path == "" {
		return ID{}, fmt.Errorf("%w: %q ends with a slash", ErrID, text)
	}
	return ParsePath(federation, path)
}

// ParsePath reads an ID without its scheme and federation, for example
// "region/jakarta/agent/n1".
func ParsePath(federation, path string) (ID, error) {
	id := ID{Federation: federation}
	part := strings.Split(path, "/")
	switch {
	case path == "":
		id.Kind = Federation
	case len(part) == 2 && part[0] == "global":
		id.Kind, id.Name = Global, part[1]
	case len(part) == 2 && part[0] == "operator":
		id.Kind, id.Name = Operator, part[1]
	case len(part) == 2 && part[0] == "region":
		id.Kind, id.Region = Region, part[1]
	case len(part) == 4 && part[0] == "region" && part[2] == "server":
		id.Kind, id.Region, id.Name = Server, part[1], part[3]
	case len(part) == 4 && part[0] == "region" && part[2] == "agent":
		id.Kind, id.Region, id.Name = Agent, part[1], part[3]
	default:
		return ID{}, fmt.Errorf("%w: %q is none of global/NAME, region/REGION/server/NAME, region/REGION/agent/NAME, operator/NAME", ErrID, path)
	}
	if err := id.Check(); err != nil {
		return ID{}, err
	}
	return id, nil
}

// Check returns an error if the ID names nothing, or if one of its names is not allowed.
func (id ID) Check() error {
	bad := func(what, name, allowed string) error {
		return fmt.Errorf("%w: %q is not a name of %s: %s", ErrID, name, what, allowed)
	}
	regional := id.Kind.Regional()
	named := id.Kind.Leaf()
	switch {
	case id.Kind == None || id.Kind > Operator:
		return fmt.Errorf("%w: it names nothing", ErrID)
	case !ValidFederation(id.Federation):
		return bad("a federation", id.Federation, "lower-case letters, digits and dashes, in labels of at most 63 bytes with dots between them")
	case (regional || id.Kind == Region) && !ValidRegion(id.Region):
		return bad("a region", id.Region, "1 to 63 of a-z, 0-9 and -, starting with a letter")
	case !regional && id.Kind != Region && id.Region != "":
		return fmt.Errorf("%w: %s has no region, not %q", ErrID, id.Kind, id.Region)
	case named && !ValidName(id.Name):
		return bad("a member", id.Name, "letters, digits and . _ -, starting with a letter or a digit")
	case !named && id.Name != "":
		return fmt.Errorf("%w: %s has no name of its own, not %q", ErrID, id.Kind, id.Name)
	case len(id.String()) > maxText:
		return fmt.Errorf("%w: its text has %d bytes, at most %d: shorten a name", ErrID, len(id.String()), maxText)
	}
	return nil
}

// ValidFederation reports whether a text can name a federation: a DNS name in lower case.
func ValidFederation(s string) bool {
	if s == "" {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if !lower(label[i]) && !digit(label[i]) && label[i] != '-' {
				return false
			}
		}
	}
	return true
}

// ValidName reports whether a text can name a server, an agent or an operator.
func ValidName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case lower(c), c >= 'A' && c <= 'Z', digit(c):
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

// ValidRegion reports whether a text can name a region, a pool or a role. It accepts the names of
// job.ValidName. A core cannot import that package.
func ValidRegion(s string) bool {
	for i := range len(s) {
		if !lower(s[i]) && (i == 0 || !digit(s[i]) && s[i] != '-') {
			return false
		}
	}
	return s != "" && len(s) <= maxLabel
}

func lower(c byte) bool { return c >= 'a' && c <= 'z' }
func digit(c byte) bool { return c >= '0' && c <= '9' }
