package discovery

import (
	"github.com/nusa-scheduler/nusa/internal/catalog"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func instanceToProto(i *catalog.Instance) *nusav1.ServiceInstance {
	return &nusav1.ServiceInstance{
		Namespace: i.Namespace, Service: i.Service, Tags: i.Tags, Region: i.Region, Node: i.Node, Address: i.Address, Port: i.Port,
		Alloc: i.Alloc, Job: i.Job, Group: i.Group, Index: i.Index,
	}
}

func instanceFromProto(m *nusav1.ServiceInstance) *catalog.Instance {
	return &catalog.Instance{
		Namespace: m.GetNamespace(), Service: m.GetService(), Tags: m.GetTags(), Region: m.GetRegion(), Node: m.GetNode(),
		Address: m.GetAddress(), Port: m.GetPort(), Alloc: m.GetAlloc(), Job: m.GetJob(), Group: m.GetGroup(), Index: m.GetIndex(),
	}
}

func positionToProto(p link.Position) *nusav1.Position {
	return &nusav1.Position{Epoch: p.Epoch, Sequence: p.Sequence}
}

func positionFromProto(p *nusav1.Position) link.Position {
	return link.Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence()}
}
