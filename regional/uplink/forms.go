package uplink

import (
	"cmp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job/config"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// Bounds of DriverForms.
const (
	maxFormDrivers = 64
	maxForms       = 8
	maxFormBytes   = 64 << 10
)

// formReader reads the forms of the config of plugins from the nodes of a view. It decodes the inventory of a
// node once, because most nodes never change and a region has thousands of them.
type formReader struct {
	nodes map[string]nodeForms // by id
	// texts are the encoded forms, which most nodes have in common.
	texts map[string]string
}

// nodeForms are the encoded forms in an inventory, by driver. inventory identifies the inventory.
type nodeForms struct {
	inventory *byte
	forms     map[string]string
}

// read returns the forms of the drivers that are not built in and healthy on a ready node.
func (r *formReader) read(view *state.View) *nusav1.DriverForms {
	known, found := map[string]nodeForms{}, map[string]map[string]bool{}
	for n := range view.Nodes() {
		if n.Status != state.NodeReady {
			continue
		}
		for _, d := range n.Drivers {
			if _, builtin := config.Of(d.Name); builtin || !d.Healthy {
				continue
			}
			of, have := known[n.ID]
			if !have {
				of = r.node(n)
				known[n.ID] = of
			}
			if found[d.Name] == nil {
				found[d.Name] = map[string]bool{}
			}
			found[d.Name][of.forms[d.Name]] = true
		}
	}
	r.nodes = known
	return formsToProto(found)
}

// node returns the forms of a node's drivers. A driver without a form has none in the map.
func (r *formReader) node(n *state.Node) nodeForms {
	var at *byte
	if len(n.Inventory) > 0 {
		at = &n.Inventory[0]
	}
	if of, have := r.nodes[n.ID]; have && of.inventory == at {
		return of
	}
	out := nodeForms{inventory: at, forms: map[string]string{}}
	var inv nusav1.NodeInventory
	if err := proto.Unmarshal(n.Inventory, &inv); err != nil {
		return out
	}
	for _, d := range inv.GetDrivers() {
		if d.GetConfig() == nil {
			continue
		}
		if raw, err := deterministic.Marshal(d.GetConfig()); err == nil {
			out.forms[d.GetName()] = r.shared("+" + string(raw)) // a form without fields is empty, too
		}
	}
	return out
}

// shared returns an equal text from an earlier node, or the text.
func (r *formReader) shared(text string) string {
	if known, have := r.texts[text]; have {
		return known
	}
	if r.texts == nil || len(r.texts) >= maxFormDrivers*maxForms {
		r.texts = map[string]string{}
	}
	r.texts[text] = text
	return text
}

var deterministic = proto.MarshalOptions{Deterministic: true}

// formsToProto converts the different encoded forms of each driver, within the bounds of the message.
func formsToProto(found map[string]map[string]bool) *nusav1.DriverForms {
	out, size := &nusav1.DriverForms{}, 0
	for name, encoded := range found {
		d := &nusav1.DriverForm{Driver: name, Any: encoded[""] || len(encoded) > maxForms}
		for raw := range encoded {
			var form nusav1.ConfigSchema
			if d.Any || raw == "" {
				continue
			}
			if err := proto.Unmarshal([]byte(raw[1:]), &form); err != nil {
				d.Any = true
				continue
			}
			d.Forms = append(d.Forms, &form)
		}
		out.Drivers = append(out.Drivers, d)
	}
	slices.SortFunc(out.Drivers, func(a, b *nusav1.DriverForm) int { return strings.Compare(a.GetDriver(), b.GetDriver()) })
	if len(out.Drivers) > maxFormDrivers {
		out.Drivers, out.Truncated = out.Drivers[:maxFormDrivers], true
	}
	for _, d := range out.Drivers {
		slices.SortFunc(d.Forms, func(a, b *nusav1.ConfigSchema) int {
			return cmp.Compare(string(encodedForm(a)), string(encodedForm(b)))
		})
		if size += proto.Size(d); d.Any || size > maxFormBytes {
			d.Any, d.Forms = true, nil
		}
	}
	return out
}

func encodedForm(m proto.Message) []byte {
	raw, _ := deterministic.Marshal(m) // cannot fail: the message was decoded before
	return raw
}
