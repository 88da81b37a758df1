package main

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"sigs.k8s.io/yaml"
)

// check answers one request in the server's order: decode strictly, prune, default, validate, run the rules.
func check(kinds map[string]*kind, asked request) answer {
	result := answer{ID: asked.ID, Problems: []problem{}}
	decoded, err := yaml.YAMLToJSON([]byte(asked.Manifest))
	if err != nil {
		return refuse(result, "", "Decode", err.Error())
	}
	result.Decoded = decoded
	obj, owner, bad := admit(kinds, decoded)
	result.Problems = append(result.Problems, bad...)
	if obj == nil {
		return result
	}
	var errs field.ErrorList
	if asked.Old == "" {
		errs = owner.validateCreate(obj)
	} else {
		decodedOld, err := yaml.YAMLToJSON([]byte(asked.Old))
		if err != nil {
			return refuse(result, "", "Decode", err.Error())
		}
		old, _, badOld := admit(kinds, decodedOld)
		if len(badOld) > 0 || old == nil {
			return refuse(result, "", "Old", fmt.Sprint(badOld))
		}
		obj.SetResourceVersion("1")
		old.SetResourceVersion("1")
		errs = owner.validateUpdate(obj, old)
	}
	for _, err := range errs {
		result.Problems = append(result.Problems, problem{err.Field, string(err.Type), err.ErrorBody()})
	}
	result.Accepted = len(result.Problems) == 0
	result.Defaulted = obj.Object
	return result
}

func refuse(result answer, path, kind, message string) answer {
	result.Problems = append(result.Problems, problem{path, kind, message})
	return result
}

// admit decodes, prunes and defaults one object, with unknown fields as errors (fieldValidation=Strict).
func admit(kinds map[string]*kind, text []byte) (*unstructured.Unstructured, *kind, []problem) {
	obj := &unstructured.Unstructured{}
	if err := obj.UnmarshalJSON(text); err != nil {
		return nil, nil, []problem{{"", "Decode", err.Error()}}
	}
	owner, known := kinds[obj.GetKind()]
	if !known || obj.GetAPIVersion() != owner.gvk.GroupVersion().String() {
		return nil, nil, []problem{{"kind", "NotFound", "no matches for kind " + obj.GetKind() + " in version " + obj.GetAPIVersion()}}
	}
	meta, found, unknown, err := objectmeta.GetObjectMetaWithOptions(obj.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return nil, nil, []problem{{"metadata", "Decode", err.Error()}}
	}
	unknown = append(unknown, pruning.PruneWithOptions(obj.Object, owner.structural, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
	defaulting.PruneNonNullableNullsWithoutDefaults(obj.Object, owner.structural)
	if found {
		if err := objectmeta.SetObjectMeta(obj.Object, meta); err != nil {
			return nil, nil, []problem{{"metadata", "Decode", err.Error()}}
		}
	}
	defaulting.Default(obj.Object, owner.structural)
	delete(obj.Object, "status") // status is a subresource: create and update drop it
	if obj.GetNamespace() == "" {
		obj.SetNamespace("default")
	}
	var bad []problem
	for _, path := range unknown {
		if path == "status" || strings.HasPrefix(path, "status.") {
			continue
		}
		bad = append(bad, problem{path, "Unknown", "unknown field"})
	}
	return obj, owner, bad
}

func (k *kind) validateCreate(obj *unstructured.Unstructured) field.ErrorList {
	errs := metavalidation.ValidateObjectMetaAccessor(obj, true, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	errs = append(errs, validation.ValidateCustomResource(nil, obj.Object, k.validator)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, k.structural, obj.Object)...)
	return append(errs, k.runRules(errs, obj, nil)...)
}

func (k *kind) validateUpdate(obj, old *unstructured.Unstructured) field.ErrorList {
	correlated := common.NewCorrelatedObject(obj.Object, old.Object, &model.Structural{Structural: k.structural})
	errs := metavalidation.ValidateObjectMetaAccessorUpdate(obj, old, field.NewPath("metadata"))
	errs = append(errs, validation.ValidateCustomResourceUpdate(nil, obj.Object, old.Object, k.validator, validation.WithRatcheting(correlated))...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, k.structural, obj.Object)...)
	return append(errs, k.runRules(errs, obj, old.Object, cel.WithRatcheting(correlated))...)
}

// runRules runs the CEL rules unless the object is malformed in a way that the server takes as blocking.
func (k *kind) runRules(before field.ErrorList, obj *unstructured.Unstructured, old any, options ...cel.Option) field.ErrorList {
	for _, err := range before {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return nil
		}
	}
	errs, _ := k.cel.Validate(context.Background(), nil, k.structural, obj.Object, old, celconfig.RuntimeCELCostBudget, options...)
	return errs
}
