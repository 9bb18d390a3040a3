{{- define "railcni.labels" -}}
app.kubernetes.io/name: railcni
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The name of the DaemonSet, and the beginning of those of the other objects in the namespace of the release */}}
{{- define "railcni.fullname" -}}
{{- $name := .Values.nameOverride | default "railcni" }}
{{- if and .Values.nameOverride (not (contains $name .Release.Name)) }}{{ $name = printf "%s-%s" .Release.Name $name }}{{ end }}
{{- .Values.fullnameOverride | default $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "railcni.account" -}}
{{ .Values.serviceAccount.name | default (include "railcni.fullname" .) }}
{{- end }}

{{/* The reference of an image: (dict "image" VALUES "of" NAME "default" REPOSITORY "root" $) */}}
{{- define "railcni.image" -}}
{{- $why := printf "%s.repository is empty: push the image that `make image` makes to a registry of yours, and name it: --set %s.repository=HOST/railcni" .of .of }}
{{- $repository := .image.repository }}
{{- with .root.Values.global.imageRegistry }}{{ $repository = printf "%s/%s" . ($repository | default $.default) }}{{ end }}
{{- $repository = required $why $repository -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* A namespace of conf/kubernetes in this release: (dict "name" NAMESPACE "root" $) */}}
{{- define "railcni.namespace" -}}
{{ get (dict "railcni" .root.Release.Namespace "kube-system" .root.Values.leaseNamespace) .name | default .name }}
{{- end }}

{{/* The documents of a file of conf/kubernetes, with the labels, namespaces and accounts of this release, and with more labels
     and annotations: (dict "file" NAME "root" $ "labels" DICT "annotations" DICT) */}}
{{- define "railcni.documents" -}}
{{- $root := .root -}}
{{- $file := $root.Files.Get (printf "files/%s.yaml" .file) }}
{{- $accounts := dict ":railcni:railcni'" (include "railcni.account" $root) ":railcni:railcni-dra'" (printf "%s-dra" (include "railcni.fullname" $root)) }}
{{- range $before, $account := $accounts }}{{ $file = $file | replace $before (printf ":RELEASE:%s'" $account) }}{{ end }}
{{- $file = $file | replace ":kube-system:railcni'" (printf ":%s:railcni'" $root.Values.leaseNamespace) }}
{{- $file = $file | replace ":RELEASE:" (printf ":%s:" $root.Release.Namespace) }}
{{- range $text := splitList "\n---\n" $file }}
{{- $document := fromYaml $text }}
{{- $metadata := $document.metadata }}
{{- $_ := set $metadata "labels" (merge (fromYaml (include "railcni.labels" $root)) ($.labels | default dict)) }}
{{- with $.annotations }}{{ $_ := set $metadata "annotations" . }}{{ end }}
{{- range concat (list $metadata) ($document.subjects | default list) }}
{{- if eq (.namespace | default "") "railcni" }}
{{- $account := and (hasKey . "kind") (eq .name "railcni") }}
{{- $_ := set . "name" ($account | ternary (include "railcni.account" $root) (replace "railcni" (include "railcni.fullname" $root) .name)) }}
{{- end }}
{{- if .namespace }}{{ $_ := set . "namespace" (include "railcni.namespace" (dict "name" .namespace "root" $root)) }}{{ end }}
{{- end }}
---
{{ toYaml $document }}
{{- end }}
{{- end }}

{{/* What the values say of each pod, as fields of its specification */}}
{{- define "railcni.pod" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with concat .Values.imagePullSecrets .Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
  {{- range $label, $value := .Values.nodeSelector }}
  {{- if $value }}
  {{ $label }}: {{ $value | quote }}
  {{- end }}
  {{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  seccompProfile:
    type: RuntimeDefault
  {{- with .Values.seLinuxOptions }}
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* How a DaemonSet is rolled out */}}
{{- define "railcni.rollout" -}}
updateStrategy:
  type: {{ .Values.updateStrategy }}
  {{- if eq .Values.updateStrategy "RollingUpdate" }}
  rollingUpdate:
    maxUnavailable: {{ .Values.maxUnavailable }}
  {{- end }}
{{- with .Values.minReadySeconds }}
minReadySeconds: {{ . }}
{{- end }}
{{- end }}
